"""Which column of a table a column of a file belongs to. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from volstream.base.model.names import NOT_IN_COLUMNS, distinct, folded
from volstream.base.model.paths import is_utf8
from volstream.functions.loading.options import RESCUED
from volstream.functions.schema import RESERVED as RESERVED_IN_RESULTS

#: A file's values under such a name are rescued.
RESERVED = RESERVED_IN_RESULTS | {RESCUED}


@dataclass(frozen=True)
class Placement:
    """The columns of a file, by their positions.

    Attributes:
        names: under which values are rescued: those in the file, with a number if they are repeated.
        by_name: position of the column for each of the table's that the file has.
        new: the names for columns that the table lacks, by position.
        stray: columns that cannot be in a table: their name is reserved, taken by another column of the file, or not text.
    """

    names: Sequence[str]
    by_name: Mapping[str, int]
    new: Mapping[int, str]
    stray: Sequence[int]


def column_name(written: str) -> str:
    """Returns the name of the table's column for a name in a file: characters that Delta does not accept become ``_``."""
    return NOT_IN_COLUMNS.sub("_", written)


def place(names: Sequence[str], table: pa.Schema) -> Placement:
    """Places a file's columns; names that differ only in case are one column, whose exact spelling comes first."""
    columns = {folded(name): name for name in table.names if name != RESCUED}
    by_name: dict[str, int] = {}
    new: dict[str, int] = {}
    stray: list[int] = []
    for exact in (True, False):
        for at, written in enumerate(names):
            name = column_name(written)
            if (name in table.names) is not exact:
                continue
            own = columns.get(folded(name))
            if not name or not is_utf8(name) or folded(name) in RESERVED or own in by_name or folded(name) in new:
                stray.append(at)
            elif own is not None:
                by_name[own] = at
            else:
                new[folded(name)] = at
    return Placement(distinct(names), by_name, {at: column_name(names[at]) for at in new.values()}, stray)
