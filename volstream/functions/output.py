"""Files that a function returns in its rows: checked, and written to the attempt's folder in the target
volume.

Runs on executors. ``jobs.outputs`` gives the files their paths, and removes them.
"""

from __future__ import annotations

import io
import os
import unicodedata
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, NamedTuple

import pyarrow as pa

from volstream.base.model.paths import content_type as type_by_name
from volstream.base.model.paths import is_utf8, printable
from volstream.files.storage.base import TakesOutputs
from volstream.functions.rows import ArrowRows, NotRowsError, Rows

#: The type FILE of result columns.
FILE = pa.struct(
    [
        ("volume", pa.string()),
        ("relative_path", pa.string()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("content_type", pa.string()),
    ]
)

#: The folder of a volume with files of attempts. Hidden, so that volumes ignore it by default.
STAGING = ".volstream-outputs"

#: Unicode categories: control characters, and line and paragraph separators.
_NOT_IN_PATHS = frozenset({"Cc", "Zl", "Zp"})

#: Maximum bytes of a path's part, and of a path: the limits of file systems and buckets, with room for a
#: volume's prefix.
_LONGEST_PART, _LONGEST_PATH = 255, 900

_CHUNK_BYTES = 1 << 20


class OutputFile:
    """A file to be written to the job's target volume, as a value of a result column of type ``FILE``.

    Args:
        relative_path: the file's path, ``/``-separated, relative to the job's ``outputs_prefix`` in the
            volume, or to the volume.
        data: the content: bytes, a path on this machine, or a binary file, which is read to its end.
        content_type: by default, derived from the path's extension.
    """

    def __init__(
        self, relative_path: str, data: bytes | str | os.PathLike[str] | IO[bytes], content_type: str | None = None
    ) -> None:
        self.relative_path = relative_path
        self.data = bytes(data) if isinstance(data, bytearray | memoryview) else data
        self.content_type = content_type

    def opened(self) -> AbstractContextManager[BinaryIO]:
        """Opens the content. Raises NotRowsError if ``data`` is not a content."""
        data: Any = self.data
        if isinstance(data, bytes):
            return io.BytesIO(data)
        if isinstance(data, str | os.PathLike):
            return open(data, "rb")
        if hasattr(data, "read"):
            return nullcontext(data)
        raise NotRowsError(
            f"The data of the output {self.relative_path!r} is a {type(data).__name__}; give bytes, a path or a binary file."
        )

    def __repr__(self) -> str:
        return f"OutputFile({self.relative_path!r})"


class StagedOutput(NamedTuple):
    """An output that a worker wrote.

    ``staged`` is its current path in the target volume, ``path`` its final one.
    """

    staged: str
    path: str
    size: int
    etag: str


@dataclass(frozen=True)
class OutputTarget:
    """Where a job's outputs go. Pickled with the query.

    Attributes:
        volume: name of the target volume, or None for a function that is tried.
        prefix: folder before all paths, ending in ``/``, or empty.
        store: if None, nothing is written, and sizes are measured.
        folder: the attempt's folder in the volume.
    """

    volume: str | None = None
    prefix: str = ""
    store: TakesOutputs | None = None
    folder: str = ""


class OutputWriter:
    """Replaces each :class:`OutputFile` in rows by a value of the type ``FILE``. Thread-safe.

    Args:
        target: None if the job has no target.
    """

    def __init__(self, columns: pa.Schema | None, target: OutputTarget | None) -> None:
        self._kinds = {field.name: field.type for field in columns or () if has_files(field.type)}
        self._target = target

    def begin(self) -> Outputs:
        """Returns a writer for the files in the rows of one call and file."""
        return Outputs(self._kinds, self._target)

    def rows(self, rows: Rows) -> Rows:
        """Returns all rows of a file in their stored form. Raises as :meth:`Outputs.stored`."""
        return rows if isinstance(rows, ArrowRows) else [*map(self.begin().stored, rows)]


def has_files(kind: pa.DataType) -> bool:
    """Returns whether values of a type are files, or contain files."""
    if kind == FILE:
        return True
    if pa.types.is_list(kind):
        return has_files(kind.value_type)
    if pa.types.is_map(kind):
        return has_files(kind.item_type)
    return pa.types.is_struct(kind) and any(has_files(field.type) for field in kind)


def problem_of(path: object, prefix: str = "") -> str | None:
    """Returns what is wrong with the path of an output, as the end of a sentence, or None."""
    if not isinstance(path, str):
        return f"is a {type(path).__name__}, not text"
    if path.startswith("/"):
        return "is absolute; give it relative to the target volume"
    parts = path.split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        return "has an empty part, '.' or '..'"
    if not is_utf8(path):
        return "is not Unicode"
    if any(unicodedata.category(character) in _NOT_IN_PATHS for character in path):
        return "has control characters or line breaks"
    if len(f"{prefix}{path}".encode()) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_PART for part in parts):
        return f"is too long: a part may have {_LONGEST_PART} bytes, all of it {_LONGEST_PATH}"
    if not prefix and parts[0] == STAGING:
        return f"is in the folder {STAGING}, which is reserved for volstream"
    return None


class Outputs:
    """The outputs of one file, by the objects that the function returned. An object in several rows is
    written once.

    Attributes:
        staged: the written outputs.
    """

    def __init__(self, kinds: Mapping[str, pa.DataType], target: OutputTarget | None) -> None:
        self.staged: list[StagedOutput] = []
        self._kinds = kinds
        self._target = target
        # Keeps the objects, so that their ids stay unique.
        self._values: dict[tuple[int, str, int], tuple[OutputFile, object, Mapping[str, Any]]] = {}
        self._paths: set[str] = set()

    def stored(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Writes the files in a row. Returns the row in its stored form.

        Raises:
            NotRowsError: a path is not allowed or is used for two files, or a value is not a file.
            StorageError: the target cannot be written.
        """
        if not self._kinds:
            return row
        return {**row, **{name: self._value(row[name], kind) for name, kind in self._kinds.items() if name in row}}

    def _value(self, value: Any, kind: pa.DataType) -> Any:
        if value is None or not has_files(kind):
            return value
        if kind == FILE:
            return self._file(value)
        if pa.types.is_list(kind) and isinstance(value, list | tuple):
            return [self._value(item, kind.value_type) for item in value]
        if pa.types.is_map(kind) and isinstance(value, Mapping):
            return {key: self._value(item, kind.item_type) for key, item in value.items()}
        if pa.types.is_struct(kind) and isinstance(value, Mapping):
            kinds = {field.name: field.type for field in kind}
            return {key: self._value(item, kinds.get(key, pa.null())) for key, item in value.items()}
        return value  # it does not fit its column

    def _file(self, file: object) -> Mapping[str, Any]:
        if not isinstance(file, OutputFile):
            raise NotRowsError(f"A column of type FILE has a {type(file).__name__}; give volstream.OutputFile(path, data=...).")
        key = id(file), file.relative_path, id(file.data)  # the function may reuse it for another row
        if key not in self._values:
            self._values[key] = file, file.data, self._write(file)
        return self._values[key][-1]

    def _write(self, file: OutputFile) -> Mapping[str, Any]:
        path, target = file.relative_path, self._target
        if target is None:
            raise NotRowsError("The function returned a file, but its job has no target volume (outputs_to).")
        if (problem := problem_of(path, target.prefix)) is not None:
            raise NotRowsError(f"The path of the output {printable(str(path))!r} {problem}.")
        path = f"{target.prefix}{path}"
        if path in self._paths:
            raise NotRowsError(f"The function returned two outputs with the path {path!r}.")
        self._paths.add(path)
        kind = file.content_type or type_by_name(path)
        try:
            with file.opened() as content:
                if isinstance(content, io.TextIOBase):
                    raise TypeError("it gives text, not bytes")
                if target.store is None:
                    size, etag = _length(content), None
                else:
                    staged = f"{target.folder}/{uuid.uuid4().hex}"
                    size, etag = target.store.put(staged, content, kind)
                    self.staged.append(StagedOutput(staged, path, size, etag))
        except (OSError, TypeError, ValueError) as error:
            hint = " Text is the path of a file; for content write data=text.encode()." if isinstance(file.data, str) else ""
            why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            raise NotRowsError(f"The data of the output {path!r} cannot be read: {why}.{hint}") from None
        return {"volume": target.volume, "relative_path": path, "size": size, "etag": etag, "content_type": kind}


def _length(content: BinaryIO) -> int:
    size = 0
    while chunk := content.read(_CHUNK_BYTES):
        size += len(chunk)
    return size
