"""The keys of each kind of object in a file: the options that its definition describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volstream.api.pipelines.model import Kind
from volstream.base import definitions
from volstream.base.definitions.options import Key, keys

#: Prefixes of table properties that record a table's own history. Another table with them could not be read at its times.
BOOKKEEPING = ("volstream.", "delta.rowTracking.", "delta.columnMapping.max", "delta.inCommitTimestampEnablement")

#: The keys of each kind. Their values are kept as the catalog has them.
KEYS: Mapping[Kind, Mapping[str, Key]] = {
    Kind.CONNECTION: keys(definitions.ConnectionOptions),
    Kind.VOLUME: keys(definitions.VolumeSpec),
    Kind.FUNCTION: keys(definitions.FunctionDefinition),
    Kind.SOURCE: keys(definitions.SourceDefinition),
    Kind.TABLE: keys(definitions.TableDefinition),
    Kind.STREAM: keys(definitions.StreamSpec),
    Kind.JOB: keys(definitions.JobDefinition),
    Kind.DYNAMIC_TABLE: keys(definitions.DynamicTableOptions),
}


def defaults(kind: Kind) -> dict[str, Any]:
    """Returns the value of each key that a file leaves out."""
    return {name: key.default for name, key in KEYS[kind].items()}


def written(kind: Kind, name: str, value: Any) -> Any:
    """Returns a value as a file has it."""
    key = KEYS[kind].get(name)
    return value if key is None else key.write(value)
