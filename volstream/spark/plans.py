"""What a query does, by the plan that Spark made of it: the words of a statement can be arranged to hide it."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, cast

from volstream.errors import SqlError
from volstream.model.names import Name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Steps of a query that only compute.
_COMPUTING = {
    "Aggregate",
    "AsOfJoin",
    "CTERelationDef",
    "CTERelationRef",
    "Deduplicate",
    "Distinct",
    "Except",
    "Expand",
    "Filter",
    "Generate",
    "GlobalLimit",
    "Intersect",
    "Join",
    "LateralJoin",
    "LocalLimit",
    "LocalRelation",
    "Offset",
    "OneRowRelation",
    "PipeOperator",
    "Pivot",
    "Project",
    "Range",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "Sample",
    "Sort",
    "SubqueryAlias",
    "Tail",
    "Union",
    "UnionLoop",
    "UnionLoopRef",
    "Unpivot",
    "Window",
    "WithCTE",
}

#: A line of a plan that is not its first: the depth, and the step. A text in the query may contain line breaks, so that other
#: lines look like these; this only leads to a refusal.
_STEP = re.compile(r"(?P<depth>(?:[: ]  )*)[:+]- (?P<step>(?P<name>\w*).*)")

_VIEW = re.compile(r"View \(`(?P<name>\w+)`, \[.*\]\)")

_BEGIN, _END = "== Analyzed Logical Plan ==", "== Optimized Logical Plan =="

#: By default the engine cuts plans after a hundred characters.
_LENGTH, _UNLIMITED = "spark.sql.maxPlanStringLength", str((1 << 31) - 16)


def check_reads(frame: DataFrame, tables: Collection[Name] = (), views: Collection[str] = ()) -> None:
    """Checks that a query reads only these relations, and runs no programs. Spark analyses it, but does not run it.

    Args:
        frame: the query; the first step of its plan is not checked, so it must be the caller's.
        tables: in Spark's catalog.
        views: temporary views with names that the query's author cannot know. Whatever is below them passes.

    Raises:
        SqlError: it reads something else, or has a step that is not known to be harmless.
    """
    conf = frame.sparkSession.conf
    before = conf.get(_LENGTH)
    conf.set(_LENGTH, _UNLIMITED)
    try:
        plan: str = cast(Any, frame)._explain_string(mode="extended")
    finally:
        conf.set(_LENGTH, str(before))
    _, begin, following = plan.partition(_BEGIN)
    analysed, end, _ = following.rpartition(_END)
    if not begin or not end:
        raise SqlError("Spark does not say what the query reads.", "Use volstream sql.")
    relations = tuple(f"spark_catalog.{table.schema}.{table.name}" for table in tables)
    trusted: int | None = None
    for line in analysed.split("\n"):
        step = _STEP.fullmatch(line)
        if step is None or (trusted is not None and len(step["depth"]) > trusted):
            continue
        view = _VIEW.fullmatch(step["step"])
        trusted = len(step["depth"]) if view is not None and view["name"] in views else None
        if trusted is None:
            _check_step(step["name"], step["step"], relations)


def _check_step(name: str, step: str, tables: tuple[str, ...]) -> None:
    if name.startswith("Relation"):
        # Of files that a query names by their path, Spark shows only the columns.
        listed = step.startswith(tuple(f"Relation {table}[" for table in tables))
        changes = name == "RelationV2" and step.endswith(tuple(f"] {table}" for table in tables))
        if not listed and not changes:
            raise SqlError(
                "Only tables, streams and directories of this home can be read here.",
                "To read files, use volstream sql.",
            )
    elif name not in _COMPUTING:
        raise SqlError(f"A query with {name or step} cannot run here.", "Use volstream sql.")
