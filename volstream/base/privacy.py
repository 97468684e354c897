"""Keeps a home private: its files from other users of the machine, its console from other hosts,
and its secrets out of definitions."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from volstream.base import config
from volstream.base.config import MIN_TOKEN, Settings
from volstream.base.model.paths import LOOPBACK
from volstream.errors import InvalidValueError

# Keeps a home's files private from other users of the machine.


def make_directory(path: Path) -> None:
    """Creates a folder and its missing parents, accessible only by the user. Leaves an existing one
    unchanged.

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
        if error.errno not in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOENT):
            raise
        raise InvalidValueError(f"The folder {path} cannot be created: {error.strerror}.", "Name another one.") from None


def secret_in(file: Path) -> str:
    """Returns the secret stored in a file of the home. Creates the file with a new secret, for the user only,
    if it is missing, or empty after a power cut.

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
    """Creates the file together with its content, durably: another process may read it now, or create its
    own."""
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

    Does nothing if the warehouse is a local folder outside the home, chosen so that others can read the
    tables: the process's umask then applies there, and the permissions of the home's folder protect the rest.
    """
    shared = "://" not in settings.warehouse_path and settings.home not in Path(settings.warehouse_path).parents
    if not shared:
        os.umask(0o077)


# The addresses and names at which the console is reached, and its URL. Imports no web framework: commands use
# it.

#: File of the home with the token that pages and programs need.
TOKEN = "console.token"

#: Addresses that stand for all of a host.
_ANY = ("0.0.0.0", "::")


def token_of(settings: Settings) -> str:
    """Returns the console's token, which is made if it is missing. Raises InvalidValueError."""
    return secret_in(settings.home / TOKEN)


def url_of(settings: Settings, port: int) -> str:
    """Returns the URL of the console of a daemon that listens on a port, with the token."""
    return f"{address_of(settings, port)}/?token={quote(token_of(settings))}"


def address_of(settings: Settings, port: int) -> str:
    """Returns what the URLs of the console's pages begin with, without a slash at its end."""
    scheme = "http" if settings.console_certificate is None else "https"
    address = settings.console_address
    host = next(iter(settings.console_hosts), LOOPBACK[0]) if address in _ANY else address
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"


def certificate_of(settings: Settings, server: str, host: str) -> tuple[Path, Path] | None:
    """Returns the files of the certificate and the key of a server, ``console`` or ``ingest``; None: it has
    none.

    Raises:
        InvalidValueError: there is none, and other hosts can reach it; or there is half of one.
    """
    certificate, key = getattr(settings, f"{server}_certificate"), getattr(settings, f"{server}_key")
    if certificate is not None and key is not None:
        return certificate, key
    if certificate is not None or key is not None:
        raise InvalidValueError(f"{server}_certificate and {server}_key belong together.", "Set both.")
    if host not in LOOPBACK:
        raise InvalidValueError(
            f"{server}_address {host} can be reached from the network, but there is no certificate.",
            f"Set {server}_certificate and {server}_key, or listen on 127.0.0.1.",
        )
    return None


def known_hosts(settings: Settings) -> frozenset[str]:
    """Returns the host names that requests may name."""
    address = () if settings.console_address in _ANY else (settings.console_address,)
    return frozenset(name.lower() for name in (*LOOPBACK, *address, *settings.console_hosts))


#: ``name[:port]`` or ``[address][:port]``.
_HOST = re.compile(r"(?:\[([0-9a-z:.]+)\]|([0-9a-z._-]+))(?::[0-9]{1,5})?")


def host_of(header: str) -> str:
    """Returns the host of a ``Host`` header without the port; empty if it is anything but a host and a
    port."""
    match = _HOST.fullmatch(header.lower())
    return "" if match is None else match[1] or match[2]


# References to secrets in definitions and settings, ``${env:NAME}`` and ``${file:PATH}``: looked up where the
# secret is needed, when it does, and stored as they are written.

_REFERENCE = re.compile(r"\$\{(env|file):([^{}]+)\}")

#: Names of properties that are secrets, of clients such as librdkafka.
_SECRET = re.compile(
    r"passw(or)?d|pwd|passphrase|secret|key\.pem$|^sasl\.oauthbearer\.config$|(api|access|private|account)[._-]?key|"
    r"(^|[._-])token$",
    re.IGNORECASE,
)


def has_references(text: str) -> bool:
    """True if there is a reference in the text."""
    return _REFERENCE.search(text) is not None


def resolve_references(text: str) -> str:
    """Returns text with its references replaced, by files without the line break at their end.

    Raises:
        InvalidValueError: a reference leads nowhere.
    """
    return _REFERENCE.sub(lambda match: _resolved(*match.groups()), text)


def with_references(message: str, said: Mapping[str, str], resolved: Mapping[str, str]) -> str:
    """Returns a message with the references that were written in place of the values that they led to.

    Args:
        said, resolved: texts by name, before and after :func:`resolve_references`.
    """
    for name, text in resolved.items():
        if text and has_references(said[name]):
            message = message.replace(text, said[name])
    return message


def check_secrets(properties: Mapping[str, str]) -> None:
    """Raises InvalidValueError, without repeating it, for a secret that is not given by reference."""
    for name, value in properties.items():
        if _SECRET.search(name) and not has_references(value):
            raise InvalidValueError(
                f"The property {name} is a secret, which the catalog does not store.",
                "Write ${env:NAME} for a variable of the environment, or ${file:PATH} for a file with the value.",
            )


def _resolved(kind: str, name: str) -> str:
    if kind == "env":
        value = config.environment(name)
        if value is None:
            raise InvalidValueError(
                f"The environment variable {name} is not set.", "Set it for this process, which may be the daemon."
            )
        return value
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidValueError(f"The file {name} cannot be read: {reason}.") from None
