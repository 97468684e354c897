"""Request and result of a comparison of codes: values. The comparing is in ``differences`` and ``compare``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from volstream.functions.types.kinds import name_of
from volstream.jobs.differences import Differences, Percentiles


@dataclass(frozen=True)
class SampleSelection:
    """Selects the delivered files to compare.

    Attributes:
        maximum: maximum number, at least that of ``paths``.
        condition: on the directory's columns; None: all.
        paths: those that the condition names, all of which must be there.
    """

    maximum: int = 200
    condition: str | None = None
    paths: Sequence[str] = ()


@dataclass(frozen=True)
class Columns:
    """How the columns of two codes differ: types in SQL by column, and for ``retyped`` the old and the new one."""

    new: Mapping[str, str]
    dropped: Mapping[str, str]
    retyped: Mapping[str, tuple[str, str]]

    @classmethod
    def of(cls, old: pa.Schema, new: pa.Schema) -> Columns:
        """Compares two schemas."""
        before, after = ({field.name: name_of(field.type) for field in schema} for schema in (old, new))
        return cls(
            {name: kind for name, kind in after.items() if name not in before},
            {name: kind for name, kind in before.items() if name not in after},
            {
                name: (before[name], kind)
                for name, kind in after.items()
                if name in before and not old.field(name).type.equals(new.field(name).type)
            },
        )


@dataclass(frozen=True)
class CostPercentiles:
    """The cost of a function's calls, per file.

    Attributes:
        seconds: duration of the call.
        memory: bytes by which the worker's memory grew at its peak; None: unknown on this system.
        counted: what the function counted, by name, over all files.
    """

    seconds: Percentiles | None
    memory: Percentiles | None
    counted: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ComparisonProgress:
    """The progress of a comparison.

    Attributes:
        files: in the sample.
        compared: files already compared; 0 while code is running on them.
        own: the job's own code is being run or compared, after the other code.
    """

    files: int
    compared: int = 0
    own: bool = False


#: Receives the progress; an error that it raises ends the comparison.
ComparisonObserver = Callable[[ComparisonProgress], None]


@dataclass(frozen=True)
class Comparison:
    """The result of running other code on delivered files.

    Attributes:
        function: the other code.
        delivered: number of files from which the sample was taken.
        differences: between the other code's outcomes and the table's rows and current failures.
        own: likewise for the job's own code, which differs from its earlier outcomes if its results vary from call to call, or
            if it was changed since; None: it was not run.
        own_cost: of the job's own code, on the same files.
    """

    job: str
    function: str
    delivered: int
    columns: Columns
    differences: Differences
    cost: CostPercentiles
    own: Differences | None = None
    own_cost: CostPercentiles | None = None

    def commands_to_switch(self, function: str, returns: str | None, arguments: Mapping[str, str] | None = None) -> Sequence[str]:
        """Returns the commands that switch the job to the other code; none if a changed column type needs a new table.

        Args:
            function: the other code, as the user gave it.
            returns: columns that the user gave for the other code.
            arguments: arguments that the user gave for it.
        """
        if self.columns.retyped:
            return ()
        pairs = [f"{key}={value}" for key, value in (arguments or {}).items()]
        options = [*(["--returns", returns] if returns else []), *(word for pair in pairs for word in ("--arg", pair))]
        return (
            shlex.join(["volstream", "alter-job", self.job, "--function", function, *options]),
            shlex.join(["volstream", "replay", self.job]),
        )
