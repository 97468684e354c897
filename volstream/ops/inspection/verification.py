"""What ``verify`` found, in words and as a document: for the command line, the console and programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from volstream.base.model.paths import printable
from volstream.base.model.text import counted

if TYPE_CHECKING:
    from volstream.changes.directory.reconcile import ComparedDirectory
    from volstream.jobs.proof.verify import Verification


def document(job: str, found: Verification) -> Mapping[str, Any]:
    """Returns everything that was found, as JSON has it."""
    return {
        "job": job,
        "files": found.files,
        "rows": found.rows,
        "failing": found.failing,
        "waiting": found.waiting,
        "wrong": {str(problem): number for problem, number in found.wrong.items()},
        "examples": [{"path": path, "problem": problem} for path, problem in found.examples],
        "foreign_commits": [vars(commit) for commit in found.commits],
        "seen_from": found.seen_from,
        "pathless": found.pathless,
        "outputs": None if found.outputs is None else found.outputs.count,
        "unnamed": None if found.outputs is None else found.outputs.unnamed,
        "unproven": found.unproven,
        "damages": [str(damage) for damage in found.damages],
        "fixed": found.fixed,
    }


def examples(found: Verification | ComparedDirectory) -> Sequence[str]:
    """Returns a line for each file that is named, and one for the rest."""
    more = found.count - len(found.examples)
    named = [f"  {kind:<9} {printable(path)}" for path, kind in found.examples]
    return [*named, f"  and {more:,} more"] if more > 0 else named


def lines(job: str, found: Verification) -> Sequence[str]:
    """Says what was found, the result first."""
    damages = "; ".join(map(str, found.damages))
    if damages and found.fixed is None:
        return [f"The table was not compared: {damages}."]
    compared = f"{counted(found.files, found.unit)} compared with a table of {counted(found.rows, 'row')}"
    if found.wrong:
        said = [f"{compared}: {found.kinds}.", *examples(found)]
    else:
        unknown = found.failing or found.unproven or found.pathless or not found.is_proven
        said = [f"{compared}: {'no differences in these' if unknown else 'no differences'}."]
    if found.failing:
        said.append(f"Failed, waiting or held back: {found.failing:,}. See: volstream list failures --job {job}")
    if found.pathless:
        said.append(
            f"{counted(found.pathless, 'row')} without the path of a file, written by another writer: delete them with SQL."
        )
    if found.commits and (found.count or found.appends):
        named = ", ".join(f"{commit.version} ({commit.operation})" for commit in found.commits[:5])
        others = f" and {len(found.commits) - 5} more" if len(found.commits) > 5 else ""
        said.append(f"Other writers changed rows in {counted(len(found.commits), 'version')}: {named}{others}.")
        if any(commit.unseen for commit in found.commits):
            said.append("Some of them dropped columns, or files that show which rows they changed have been deleted.")
    if found.seen_from is not None:
        said.append(f"What other writers changed before version {found.seen_from} is no longer known: the log was cleaned up.")
    if (made := found.outputs) is not None:
        said.append(f"{counted(made.count, 'output')} compared with their volume.")
        if made.unnamed:
            named = ", ".join(map(printable, made.examples[:5])) + (" ..." if made.unnamed > 5 else "")
            said.append(f"The job's folder there also has {counted(made.unnamed, 'file')} that no row names: {named}.")
    if found.unproven:
        said.append(f"{counted(found.unproven, found.unit)} without rows: the function may have returned none.")
    if found.waiting:
        said.append(f"Not compared: {counted(found.waiting, 'file')} that the next run processes.")
    if damages:
        said.append(f"Removed from the table, because they were damaged: {damages}.")
    if found.fixed is not None and found.count:
        said.append(f"Repaired: {found.fixed:,} of {found.count:,}.")
    return said
