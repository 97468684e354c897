"""How the files of a job that loads are read. Pure: the job stores these options as the arguments of its function."""

from __future__ import annotations

from collections.abc import Mapping

from volstream.base.definitions import LoadKeys
from volstream.base.definitions.forms import as_text
from volstream.base.definitions.job import load_keys
from volstream.base.definitions.options import to_create

#: The name under which a job has the function that loads files.
LOADER = "volstream.functions.loading.loader:Loader"

#: The column for what fits no other, as JSON.
RESCUED = "_rescued_data"

#: The argument with the names of the number columns whose types were found in files, not declared, with commas between them.
INFERRED = "inferred"

#: The column with the path of a row's entry in an archive.
ENTRY = "_entry_path"


#: The options of loading that a job has as arguments: all but the table's columns.
LOADED = to_create(LoadKeys, "schema")


class LoadOptions(LoadKeys):
    """How files are read, without the table's columns. ``encoding`` is Python's name of it."""

    @classmethod
    def of(cls, arguments: Mapping[str, str]) -> LoadOptions:
        """Parses a job's arguments. Raises InvalidValueError."""
        given = {name: text for name, text in arguments.items() if name != INFERRED}
        described = load_keys(given, "schema")
        return cls(**{name: described[name].parse(text) for name, text in given.items() if text})

    def arguments(self) -> dict[str, str]:
        """Returns the arguments that :meth:`of` parses."""
        return {name: as_text(value) for name, value in vars(self).items() if value is not None}
