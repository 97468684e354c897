"""How a load job reads files: its options, which the job stores, and the formats of files by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from volstream.base import plugins
from volstream.base.definitions import FileFormat, LoadKeys
from volstream.base.definitions.forms import as_text
from volstream.base.definitions.job import load_keys
from volstream.base.definitions.options import to_create
from volstream.base.plugins import Group

#: The column for data that fits no other column, as JSON.
RESCUED = "_rescued_data"

#: The argument with the comma-separated names of the number columns whose types were found in files, not
#: declared.
INFERRED = "inferred"

#: The column with the path of a row's entry in an archive.
ENTRY = "_entry_path"


#: The loading options that a job has as arguments: all except the table's columns.
LOADED = to_create(LoadKeys, "schema")


class LoadOptions(LoadKeys):
    """How files are read, without the table's columns. ``encoding`` is Python's name of the encoding."""

    @classmethod
    def of(cls, arguments: Mapping[str, str]) -> LoadOptions:
        """Parses a job's arguments. Raises InvalidValueError."""
        given = {name: text for name, text in arguments.items() if name != INFERRED}
        described = load_keys(given, "schema")
        return cls(**{name: described[name].parse(text) for name, text in given.items() if text})

    def arguments(self) -> dict[str, str]:
        """Returns the arguments that :meth:`of` parses."""
        return {name: as_text(value) for name, value in vars(self).items() if value is not None}


# Recognizes a file's format by its name. Pure.

_FORMATS: Mapping[str, FileFormat] = {
    "csv": FileFormat.CSV,
    "tsv": FileFormat.CSV,
    "json": FileFormat.JSON,
    "jsonl": FileFormat.JSON,
    "ndjson": FileFormat.JSON,
    "parquet": FileFormat.PARQUET,
    "avro": FileFormat.AVRO,
    "orc": FileFormat.ORC,
}

#: The folder of rows without a value.
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"

#: Extensions of compressed files, whose formats the preceding extension tells, and of archives, whose entries
#: tell their own.
_COMPRESSED, _ARCHIVES = ("gz", "bz2", "zst", "lz4", "xz", "sz", "snappy"), ("zip", "tar", "tgz")


#: Valid extensions of file names, as part of a sentence.
EXTENSIONS = (
    f"{', '.join(f'.{word}' for word in _FORMATS)}, also followed by {', '.join(f'.{word}' for word in _COMPRESSED)}, "
    f"and {', '.join(f'.{word}' for word in _ARCHIVES)}"
)


@dataclass(frozen=True)
class RecognizedFormat:
    """A file's format, according to its name and the job's options.

    Attributes:
        delimiter: between the values of a csv file.
    """

    format: FileFormat
    delimiter: str


def is_marker(path: str) -> bool:
    """Returns whether a file holds no rows by convention: a part of its path begins with ``_`` or ``.``, as
    for Spark.

    Folders of partitions (``_day=1``) are not markers.
    """
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in path.split("/"))


def partitions(path: str) -> Mapping[str, str | None]:
    """Returns the values in the names of folders, as Hive and Spark write them: ``day=2026-01-01/x.csv``."""
    pairs = (folder.partition("=") for folder in path.split("/")[:-1])
    values = {_decoded(name): _decoded(value) for name, equals, value in pairs if name and equals}
    return {name: None if value == _HIVE_NULL else value for name, value in values.items()}


def _decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:  # it was not encoded this way
        return text


def recognize(path: str, options: LoadOptions) -> RecognizedFormat | None:
    """Returns the format of the file at ``path``, or None if neither its name nor the options tell it."""
    extension = _extension(path)
    file_format = options.format or _FORMATS.get(extension)
    if file_format is None and plugins.has(Group.READERS, extension):
        file_format = FileFormat(extension)
    if file_format is None:
        return None
    return RecognizedFormat(file_format, options.delimiter or ("\t" if extension == "tsv" else ","))


def may_be_read(path: str, options: LoadOptions) -> bool:
    """Returns whether the file at ``path`` is recognized, or is an archive."""
    return _extension(path) in _ARCHIVES or recognize(path, options) is not None


def _extension(path: str) -> str:
    stem, _, extension = path.rpartition("/")[2].lower().rpartition(".")
    return stem.rpartition(".")[2] if extension in _COMPRESSED else extension
