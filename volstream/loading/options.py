"""How the files of a job that loads are read. Pure: the job stores these options as the arguments of its function."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from volstream.errors import InvalidValueError

#: The name under which a job has the function that loads files.
LOADER = "volstream.loading.loader:Loader"

#: The column for what fits no other, as JSON.
RESCUED = "_rescued_data"


class FileFormat(StrEnum):
    """The format of a volume's files."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


class NewColumns(StrEnum):
    """The treatment of a file's columns that the table lacks: add them, rescue their values, or fail the file."""

    ADD = "add"
    RESCUE = "rescue"
    FAIL = "fail"


@dataclass(frozen=True)
class LoadOptions:
    """How files are read.

    Attributes:
        format: of all files; None: each by its extension.
        header: the first row of a csv file names its columns.
        delimiter: one character between the values of a csv file; None: a comma, or a tab in ``.tsv`` files.
        encoding: Python's name of the encoding of csv and json files.
    """

    format: FileFormat | None = None
    header: bool = True
    delimiter: str | None = None
    encoding: str = "utf-8"
    new_columns: NewColumns = NewColumns.ADD

    @classmethod
    def of(cls, arguments: Mapping[str, str]) -> LoadOptions:
        """Parses a job's arguments. Raises InvalidValueError."""
        unknown = sorted(arguments.keys() - _NAMES)
        if unknown:
            raise InvalidValueError(
                f"There is no load option {unknown[0]!r}.", f"There are: {', '.join(sorted(_NAMES))}."
            )
        delimiter = arguments.get("delimiter", "")
        if delimiter.lower() in ("tab", "\\t"):
            delimiter = "\t"
        if delimiter and (len(delimiter) > 1 or not delimiter.isascii() or delimiter in '"\r\n'):
            raise InvalidValueError(f"The delimiter cannot be {delimiter!r}.", "Give one ASCII character, or tab.")
        header = arguments.get("header", "true").lower()
        if header not in ("true", "false"):
            raise InvalidValueError(f"The option header cannot be {header!r}.", "Give true or false.")
        form = arguments.get("format")
        return cls(
            _one_of(FileFormat, "format", form) if form else None,
            header == "true",
            delimiter or None,
            _encoding(arguments.get("encoding", "utf-8")),
            _one_of(NewColumns, "new_columns", arguments.get("new_columns", NewColumns.ADD)),
        )


_NAMES = frozenset({"format", "header", "delimiter", "encoding", "new_columns"})

_Choice = TypeVar("_Choice", bound=StrEnum)


def _one_of(values: type[_Choice], name: str, text: str) -> _Choice:
    try:
        return values(text.lower())
    except ValueError:
        known = ", ".join(values)
        raise InvalidValueError(f"The option {name} cannot be {text!r}.", f"Choose one of {known}.") from None


def _encoding(name: str) -> str:
    try:
        found = codecs.lookup(name)
    except (LookupError, ValueError):  # the latter for a NUL
        raise InvalidValueError(f"There is no encoding {name!r}.", "Give, for example, utf-8 or latin-1.") from None
    if not found._is_text_encoding:  # Python's own test in open()
        raise InvalidValueError(f"{name!r} is not an encoding of text.", "Give, for example, utf-8 or latin-1.")
    return found.name
