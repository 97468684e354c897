"""How the files of a job that loads are read. Pure: the job stores these options as the arguments of its function."""

from __future__ import annotations

from collections.abc import Mapping

from volstream.base.definitions import LoadKeys
from volstream.base.definitions.forms import as_text
from volstream.base.definitions.options import to_create
from volstream.base.model.text import nearest
from volstream.errors import InvalidValueError

#: The name under which a job has the function that loads files.
LOADER = "volstream.functions.loading.loader:Loader"

#: The column for what fits no other, as JSON.
RESCUED = "_rescued_data"


#: The options of loading that a job has as arguments: all but the table's columns.
LOADED = to_create(LoadKeys, "schema")


class LoadOptions(LoadKeys):
    """How files are read, without the table's columns. ``encoding`` is Python's name of it."""

    @classmethod
    def of(cls, arguments: Mapping[str, str]) -> LoadOptions:
        """Parses a job's arguments. Raises InvalidValueError."""
        unknown = sorted(arguments.keys() - LOADED)
        if unknown:
            raise InvalidValueError(f"There is no load option {unknown[0]!r}.", nearest(unknown[0], list(LOADED)))
        return cls(**{name: LOADED[name].parse(text) for name, text in arguments.items() if text})

    def arguments(self) -> dict[str, str]:
        """Returns the arguments that :meth:`of` parses."""
        return {name: as_text(value) for name, value in vars(self).items() if value is not None}
