"""Tables that a pipeline's file defines; Delta keeps what the catalog keeps of other objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from volstream.base.definitions.options import Option


@dataclass(frozen=True, kw_only=True)
class TableDefinition:
    """What a user says of a table."""

    columns: Annotated[str, Option("Its columns: 'id BIGINT NOT NULL, name STRING'.", metavar="DDL")]
    primary_key: Annotated[Sequence[str], Option("Columns that identify a row.", alterable=False)] = ()
    partitioned_by: Annotated[Sequence[str], Option("Columns of its partitions.", alterable=False)] = ()
    properties: Annotated[Mapping[str, str], Option("Properties, such as change_tracking.")] = field(default_factory=dict)
