"""Keeps a home's files private from other users of the machine."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from volstream.base.config import MIN_TOKEN, Settings
from volstream.errors import InvalidValueError


def make_directory(path: Path) -> None:
    """Creates a folder and its missing parents, accessible only by the user. Leaves an existing one unchanged.

    Raises:
        InvalidValueError: the path cannot be a folder, or must not be created.
    """
    if os.path.isdir(path):
        return
    make_directory(path.parent)
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        raise InvalidValueError(f"{path} is not a folder.", "Name another one.") from None
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
            raise
        raise InvalidValueError(f"The folder {path} cannot be created: {error.strerror}.", "Name another one.") from None


def secret_in(file: Path) -> str:
    """Returns the secret stored in a file of the home. Creates the file with a new secret, for the user only, if it is missing,
    or empty after a power cut.

    Raises:
        InvalidValueError: the file cannot be read or created.
    """
    try:
        while not (secret := _secret(file)):
            _make_secret(file)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"{file} cannot be used: {error}.", "Remove it; a new one is then created.") from None
    check_token(secret, f"The file {file}", "Remove it; a new one is then created.")
    return secret


def check_token(token: str, what: str, remedy: str = "Choose a longer one.") -> None:
    """Raises InvalidValueError if a token is easy to guess."""
    if len(token.strip()) < MIN_TOKEN:
        raise InvalidValueError(f"{what} has a token of fewer than {MIN_TOKEN} characters.", remedy)


def write_private(file: Path, text: str) -> None:
    """Replaces a file by one that only the user can read."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        make_directory(file.parent)
        temporary.touch(mode=0o600)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _secret(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""


def _make_secret(file: Path) -> None:
    """Creates the file together with its content, durably: another process may read it now, or create its own."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        temporary.touch(mode=0o600)
        with temporary.open("w", encoding="ascii") as target:
            target.write(f"{secrets.token_urlsafe(32)}\n")
            target.flush()
            os.fsync(target.fileno())
        if file.exists() and not _secret(file):
            temporary.replace(file)
        else:
            with suppress(FileExistsError):
                os.link(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def keep_private(settings: Settings) -> None:
    """Makes this process, which must be one of volstream's own, create files that only the user can read.

    Does nothing if the warehouse is a local folder outside the home, chosen so that others can read the tables: the process's
    umask then applies there, and the permissions of the home's folder protect the rest.
    """
    shared = "://" not in settings.warehouse_path and settings.home not in Path(settings.warehouse_path).parents
    if not shared:
        os.umask(0o077)
