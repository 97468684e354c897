"""Where tables and folders lie: a location as a filesystem of pyarrow's, and as a table of deltalake's.

A location is a local path or a URI, and is text: in the catalog, in plans, in Spark's SQL. What an object store has to be told
besides, such as an endpoint, is known by the warehouse that a location is in (``delta.options``).

Nothing else asks pyarrow for a filesystem, or opens a table with deltalake.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import CommitProperties, PostCommitHookProperties
from pyarrow import fs

from volstream.delta.options import options_of
from volstream.errors import DependencyError, StorageError

#: Schemes of S3, and of what speaks its protocol.
_S3 = ("s3", "s3a", "oss")


def is_remote(location: str) -> bool:
    """Whether it is in an object store or on another host: not a path of this host."""
    return "://" in location and not location.startswith("file://")


def filesystem_of(location: str) -> tuple[fs.FileSystem, str]:
    """Where a location lies, and its path there without a trailing slash."""
    place = urlsplit(location)
    if place.scheme in _S3 and is_remote(location):
        options = tuple(sorted(options_of(location).items()))
        return _s3(options), f"{place.netloc}{place.path}".rstrip("/")
    filesystem, path = fs.FileSystem.from_uri(location)
    return filesystem, path.rstrip("/")


def is_table(location: str) -> bool:
    """Whether there is a Delta table. Raises DependencyError."""
    with mapped(location):
        return DeltaTable.is_deltatable(_uri(location), options_of(location) or None)


def open_table(location: str, version: int | None = None) -> DeltaTable:
    """The table at a version, or at the newest one. Raises what deltalake does."""
    return DeltaTable(_uri(location), version=version, storage_options=options_of(location) or None)


def create_table(
    location: str,
    schema: pa.Schema,
    configuration: Mapping[str, str],
    commit: CommitProperties,
    hooks: PostCommitHookProperties,
) -> DeltaTable:
    """A new table without rows. Raises what deltalake does."""
    make_folder(location)
    return DeltaTable.create(
        _uri(location), schema, configuration=dict(configuration), storage_options=options_of(location) or None,
        commit_properties=commit, post_commithook_properties=hooks,
    )  # fmt: skip


def make_folder(location: str) -> None:
    """Makes a folder, and those above it, where there are folders: an object store knows names of objects only."""
    if not is_remote(location):
        filesystem, path = filesystem_of(location)
        filesystem.create_dir(path, recursive=True)


def replace_file(location: str, content: bytes) -> None:
    """Writes a small file in one step: whoever reads it sees the old content or the new one."""
    filesystem, path = filesystem_of(location)
    target = path if is_remote(location) else f"{path}.new"
    with filesystem.open_output_stream(target) as file:
        file.write(content)
    if target != path:
        filesystem.move(target, path)


def make_durable(filesystem: fs.FileSystem, *paths: str, folders: bool = True) -> None:
    """Lets files, and with ``folders`` the names of them, survive a power cut. Object stores do so by themselves."""
    if not isinstance(filesystem, fs.LocalFileSystem):
        return
    for path in dict.fromkeys([*paths, *(map(os.path.dirname, paths) if folders else ())]):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def mapped(location: str) -> Iterator[None]:
    """Maps what deltalake and pyarrow raise to DependencyError, but for a table that is not there; where the location is in
    an object store, to StorageError, which may pass."""
    try:
        yield
    except TableNotFoundError:
        raise
    except (DeltaError, OSError) as error:
        kind = StorageError if is_remote(location) else DependencyError
        raise kind(f"The table at {location} cannot be read or written: {error}.") from error


@contextmanager
def reached(location: str) -> Iterator[None]:
    """Maps what pyarrow raises of a location in an object store to StorageError. A disk that fails is no passing thing."""
    try:
        yield
    except OSError as error:
        if not is_remote(location):
            raise
        raise StorageError(f"{location} cannot be read or written: {error}.") from error


def _uri(location: str) -> str:
    """As deltalake knows it, which knows OSS only by the protocol of S3."""
    scheme, separator, rest = location.partition("://")
    return f"s3{separator}{rest}" if scheme == "oss" else location


@functools.cache
def _s3(options: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    given = dict(options)
    return fs.S3FileSystem(
        access_key=given.get("AWS_ACCESS_KEY_ID"), secret_key=given.get("AWS_SECRET_ACCESS_KEY"),
        session_token=given.get("AWS_SESSION_TOKEN"), region=given.get("AWS_REGION"),
        endpoint_override=given.get("AWS_ENDPOINT_URL"),
        force_virtual_addressing=given.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() == "true",
    )  # fmt: skip
