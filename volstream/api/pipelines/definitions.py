"""Definitions, as files and homes have them in common: kinds, names, keys, and values in one canonical form.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from volstream.base import definitions
from volstream.base.definitions.options import Key, keys
from volstream.base.model.names import Name

# Definitions, as files and homes have them in common: kinds, names, and values in one canonical form. Pure.

#: The value of a key that only the planner sees: a hash of the source of a job's function.
CODE = "code"

#: The value of a table that only the planner sees: columns that jobs which write it may have added.
ADDED = "added"

#: Keys that say what a job runs; a job has one of them.
JOB_KINDS = ("statement", "load", "function")


class Kind(StrEnum):
    """The kinds of objects, by the tables of a file that define them. In the order in which independent ones
    are made."""

    CONNECTION = "connections"
    VOLUME = "volumes"
    FUNCTION = "functions"
    SOURCE = "sources"
    TABLE = "tables"
    STREAM = "streams"
    JOB = "jobs"
    DYNAMIC_TABLE = "dynamic_tables"

    @property
    def noun(self) -> str:
        """The kind of one object, in messages."""
        return self.value.removesuffix("s").replace("_", " ")


@dataclass(frozen=True)
class Definition:
    """An object, as a file defines it or as the home has it.

    Attributes:
        values: a value for every key of the kind, defaults included: text, numbers, booleans, tuples and
            mappings of text.
        folder: paths in the file are relative to it.
        file: the name of its file, for messages; empty: it comes from a home.
    """

    kind: Kind
    name: Name
    values: Mapping[str, Any]
    folder: Path = field(default_factory=Path, compare=False)
    file: str = field(default="", compare=False)

    @property
    def identity(self) -> tuple[Kind, Name]:
        """What distinguishes it from all others."""
        return self.kind, self.name

    @property
    def title(self) -> str:
        """The object in messages, such as ``volume photos``."""
        return f"{self.kind.noun} {self.name}"

    @property
    def where(self) -> str:
        """The object and its file, for messages."""
        return f"{self.file}: {self.title}" if self.file else self.title


class Verb(StrEnum):
    """What an action does to its object."""

    CREATE = "create"
    ALTER = "alter"
    DROP = "drop"
    KEEP = "keep"

    @property
    def done(self) -> str:
        """The verb in a report."""
        return {"create": "created", "alter": "altered", "drop": "dropped", "keep": "unchanged"}[self.value]


@dataclass(frozen=True)
class Change:
    """A key whose value differs.

    Attributes:
        blocked: why it cannot be changed, with the remedy; empty: it can.
    """

    key: str
    before: Any
    after: Any
    blocked: str = ""


@dataclass(frozen=True)
class PlanStep:
    """A step of a plan.

    Attributes:
        changes: of an object that is altered: what differs.
    """

    verb: Verb
    definition: Definition
    changes: Sequence[Change] = ()

    @property
    def changed(self) -> Mapping[str, Any]:
        """The new values of the keys that differ."""
        return {change.key: change.after for change in self.changes}


@dataclass(frozen=True)
class PipelinePlan:
    """What is to be done, in order."""

    actions: Sequence[PlanStep]

    @property
    def changes(self) -> Sequence[PlanStep]:
        """The actions that change something."""
        return [action for action in self.actions if action.verb is not Verb.KEEP]

    def count(self, verb: Verb) -> int:
        """Returns the number of actions of a kind."""
        return sum(action.verb is verb for action in self.actions)


# The keys of each kind of object in a file: the options that its definition describes.

#: Prefixes of table properties that record a table's own history. Another table with them could not be read
#: at its times.
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
