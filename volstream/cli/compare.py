"""``compare``: what other code would change, before a job is switched to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from volstream.base.model.text import counted
from volstream.base.model.units import format_size
from volstream.base.model.work import shown_counts
from volstream.cli.options import NUMBER, PAIR, common, merged, names_of
from volstream.cli.output import Output

if TYPE_CHECKING:
    from volstream.api.session import Session
    from volstream.jobs.proof.compare import Comparison, CostPercentiles, Differences, Percentiles


@click.command("compare")
@click.argument("job", shell_complete=names_of("job"))
@click.option("--function", required=True, metavar="FILE.py:FUNC|pkg.mod:FUNC", help="The other code.")
@click.option("--returns", metavar="DDL", help="Its columns; default: those that it declares, else the job's.")
@click.option(
    "--arg", "arguments", type=PAIR, multiple=True, metavar="KEY=VALUE", help="Its arguments; without any, the job's apply."
)
@click.option("--sample", type=NUMBER, default=200, show_default=True, help="How many files, spread over the directory.")
@click.option("--where", metavar="SQL", help='Only files for which this holds, such as "size < 1000000".')
@click.option("--path", "paths", multiple=True, metavar="PATH", help="Only this file; may be repeated.")
@click.option("--both", is_flag=True, help="Also run the job's own code, to measure it and to see whether its results vary.")
@common
def compare_command(
    session: Session, output: Output, job: str, function: str, returns: str | None, arguments: tuple[Any, ...], **chosen: Any
) -> None:
    """Run other code on files that JOB has processed, and show what would change. Writes nothing."""
    given = merged(arguments)
    comparison = session.jobs.compare(job, function, returns=returns, arguments=given or None, **chosen)
    following = comparison.commands_to_switch(function, returns, given)
    if output.as_json:
        output.result({**vars(comparison), "next": following}, None)
        return
    output.part(_summary(comparison))
    _show(output, comparison.differences)
    output.part("\n".join([*_costs(comparison), *_own(comparison)]))
    if following:
        output.part("\n".join(["", "To switch:", *(f"  {command}" for command in following)]))
    else:
        output.part("\nA changed column type needs a new table. Create another job: volstream create-job")


def _summary(comparison: Comparison) -> str:
    differences = comparison.differences
    lines = [
        f"Compared {differences.files} of {counted(comparison.delivered, 'delivered file')} with {comparison.function}. "
        "Nothing was written."
    ]
    said = [
        (differences.same - differences.still_failing, "unchanged"),
        (differences.still_failing, "still failing"),
        (differences.differing, "with other values"),
        (differences.more.count, "with more rows"),
        (differences.fewer.count, "with fewer rows"),
        (sum(failure.files for failure in differences.new_failures), "newly failing"),
        (sum(failure.files for failure in differences.healed), "healed"),
    ]
    lines.append("Files: " + ", ".join(f"{count} {what}" for count, what in said if count or what == "unchanged") + ".")
    if differences.uncompared:
        lines.append(f"{counted(differences.uncompared, 'file')} with too many rows: only the number of rows was compared.")
    if differences.changed:
        lines.append(f"Left out: {counted(differences.changed, 'file')} that were changed or deleted meanwhile.")
    columns = comparison.columns
    lines += [f"New column: {name} {kind}" for name, kind in columns.new.items()]
    lines += [f"Dropped column: {name} {kind}" for name, kind in columns.dropped.items()]
    lines += [f"Other type: {name} {old} -> {new}" for name, (old, new) in columns.retyped.items()]
    return "\n".join(lines)


def _show(output: Output, differences: Differences) -> None:
    """Prints tables of the differences that there are."""
    values = [
        {"column": name, "rows": kept.count, "file": example.path, "old": example.old, "new": example.new}
        for name, kept in sorted(differences.columns.items(), key=lambda item: -item[1].count)
        for example in kept.examples
    ]
    counts = [
        {"rows": what, "files": kept.count, "file": example.path, "old": example.old, "new": example.new}
        for what, kept in (("more", differences.more), ("fewer", differences.fewer))
        for example in kept.examples
    ]
    errors = [
        {"failures": what, "files": group.files, "kind": group.kind, "error": group.message, "file": group.paths[0]}
        for what, groups in (("new", differences.new_failures), ("healed", differences.healed))
        for group in groups
    ]
    for rows in (values, counts, errors):
        if rows:
            output.table(rows, list(rows[0]), "")


def _costs(comparison: Comparison) -> Iterator[str]:
    yield f"Per file, median and 95th percentile: {_took(comparison.cost)}"
    if comparison.own_cost is not None:
        yield f"The job's own code on the same files: {_took(comparison.own_cost)}"
    else:
        yield "With --both the job's own code is measured, too."


def _own(comparison: Comparison) -> Iterator[str]:
    own = comparison.own
    if own is None:
        return
    if own.none:
        yield "The job's own code returns the rows that the table has."
        return
    columns = f" (columns {', '.join(sorted(own.columns))})" if own.columns else ""
    yield (
        f"The job's own code returns other rows than the table has for {counted(own.files - own.same, 'file')}{columns}: "
        "its results vary, or it was changed since."
    )


def _took(cost: CostPercentiles) -> str:
    time = "unknown time" if cost.seconds is None else _spread(cost.seconds, _seconds)
    memory = "unknown memory" if cost.memory is None else f"{_spread(cost.memory, _size)} of memory"
    counted = f"; counted in all: {shown_counts(cost.counted)}" if cost.counted else ""
    return f"{time}, {memory}{counted}"


def _spread(spread: Percentiles, shown: Any) -> str:
    return f"{shown(spread.median)} and {shown(spread.high)}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _size(size: float) -> str:
    return format_size(int(size))
