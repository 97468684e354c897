"""``list``, ``describe`` and ``drop``. Start no JVM."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from volstream.base.definitions import FileJob, Job, Volume
from volstream.base.model.names import Name
from volstream.base.model.units import format_size
from volstream.base.model.work import ACTIVE, FailureKind, FailureState
from volstream.cli.options import NUMBER, common, kinds, like, names_of
from volstream.cli.output import Output, in_a_line

if TYPE_CHECKING:
    from volstream.api.session import Session
    from volstream.ops.inspection.tables import DescribedTable

#: Kind -> columns in a list; JSON has all.
_COLUMNS: Mapping[str, Sequence[str]] = {
    "connections": ("name", "type", "region", "endpoint", "comment"),
    "volumes": ("name", "location", "queue_type", "last_listing", "comment"),
    "streams": ("name", "source_kind", "source_name", "mode", "offset", "has_data", "stale", "stale_after", "comment"),
    "jobs": ("name", "function", "statement", "into", "trigger", "state", "last_outcome"),
    "functions": ("name", "location", "returns", "comment"),
    "sources": ("name", "kind", "primary_key", "retention", "versions", "error", "error_on", "comment"),
    "tables": ("table", "filled_by", "rows", "size", "written_on", "note"),
    "batches": ("id", "job", "state", "files", "removals", "moves", "succeeded", "failed", "rows", "seconds", "created_on"),
    "failures": (),  # in blocks
    "rejected": ("volume", "subject", "reason", "count", "last_seen"),
}

#: What a table says of the versions of a job's code.
_CODE_VERSIONS = ("number", "files", "current", "made_on", "made_by")

#: Details that follow the others, to be copied.
_DOCUMENTS = ("trust_policy", "permission_policy", "source")

#: What a person asks first of an object, in this order.
_FIRST = (
    *("name", "state", "state_reason", "problems", "last_outcome", "last_started", "last_ended", "trigger"),
    *("done", "files", "waiting", "waiting_since", "failed", "skipped", "next_retry"),
    *("function", "statement", "code", "location", "stream", "into", "returns", "external_id"),
)

#: What helps only those who look for a fault in volstream, besides ids.
_LAST = (
    "declared",
    "clean",
    "may_have_strays",
    "failed_batches",
    "verified_version",
    "owns_stream",
    "dynamic",
    "fingerprint",
    "id",
)

#: Default number of rows in a list.
_LIMIT = 1000

#: Characters of a rejected message that a table shows.
_MAX_SHOWN = 120

#: Failed files that are named for each cause.
_NAMED = 5

_STATES = [state.value for state in ACTIVE]

_KINDS = ("connection", "volume", "stream", "job", "function", "source")


@click.command("list")
@click.argument("kind", type=click.Choice([*_COLUMNS]))
@click.option("--job", metavar="NAME", help="Only batches or failures of this job.", shell_complete=names_of("job"))
@click.option(
    "--state", "states", type=click.Choice(_STATES), multiple=True, help="Only failures in this state; may be repeated."
)
@click.option("--volume", metavar="NAME", help="Only rejected messages of this volume.", shell_complete=names_of("volume"))
@kinds("Failures of this kind only.")
@like("Failures of files whose path is LIKE this, such as 'scans/%.pdf'.")
@click.option("--all", "whole", is_flag=True, help="Name all failed files, not five of each cause.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), help="Maximum number of rows; default 1000, or all failures as JSON.")
@common
def list_command(
    session: Session,
    output: Output,
    kind: str,
    job: str | None,
    states: tuple[str, ...],
    volume: str | None,
    kinds: tuple[str, ...],
    like: str | None,
    whole: bool,
    limit: int | None,
) -> None:
    """List the objects of a KIND."""
    from volstream.catalog.failures import FailureFilter

    if kind != "failures":
        rows = _rows(session, kind, job, volume, limit or _LIMIT)
        shown = [{**row, "subject": _cut(row["subject"])} for row in rows] if kind == "rejected" else rows
        output.table(shown, _COLUMNS[kind], f"No {kind}.", everything=rows)
        return
    chosen = [FailureState(state) for state in states] or ACTIVE
    wanted = FailureFilter(chosen, [FailureKind(name) for name in kinds], like)
    maximum = limit or (None if output.as_json else _LIMIT)
    from volstream.cli.failures import by_cause
    from volstream.ops.inspection.details import explained

    rows = explained(session.home, session.jobs.failures(job, wanted=wanted, limit=maximum))
    if rows and not output.as_json:
        output.result(rows, by_cause(rows, shutil.get_terminal_size((100, 40)).columns, None if whole else _NAMED))
    else:
        output.table(rows, (), "No failures.")
    if len(rows) == maximum and (count := session.jobs.failure_count(job, wanted)) > maximum:
        output.message(
            f"These are {len(rows)} of {count} failures. See more with --limit, --kind or --like; all with --format json."
        )


@click.command("describe")
@click.argument("kind", type=click.Choice([*_KINDS, "batch", "table"]))
@click.argument("name", shell_complete=names_of())
@click.option("--all", "whole", is_flag=True, help="Also show ids and internal attributes.")
@click.option("--history", "past", is_flag=True, help="Show who changed its definition, when, and how.")
@common
def describe_command(session: Session, output: Output, kind: str, name: str, whole: bool, past: bool) -> None:
    """Show one object in full."""
    if past:
        if kind not in _KINDS:
            raise click.UsageError(f"A {kind} has no definition: --history is for {', '.join(_KINDS)}.")
        changes = session.by_kind[kind].history(name)
        rows = [{**vars(change), "text": change.text} for change in changes]
        output.table(rows, ("id", "saved_on", "saved_by", "what", "text"), f"There is no {kind} {name}, and never was.")
        return
    if kind == "table":
        from volstream.ops.inspection.tables import described_table

        table = described_table(session.home, name)
        output.result(table, None) if output.as_json else _show_table(output, table)
        return
    values = _described(session, kind, name)
    if output.as_json:
        output.details(values)
        return
    versions = values.pop("code_versions", None)
    output.details(_in_order(values, whole=whole), _DOCUMENTS)
    if versions:
        output.table(versions, _CODE_VERSIONS, "")


@click.command("revert")
@click.argument("kind", type=click.Choice(_KINDS))
@click.argument("name", shell_complete=names_of())
@click.option("--to", type=NUMBER, metavar="ID", help="The definition with this id, as describe --history shows it.")
@common
def revert_command(session: Session, output: Output, kind: str, name: str, to: int | None) -> None:
    """Put back the definition that an object had before its newest change. Its position and its rows stay."""
    from volstream.ops.inspection import details

    collection = session.by_kind[kind]
    before = collection.history(name)[:1]
    earlier = session.jobs.get(name) if kind == "job" else None
    reverted = collection.revert(name, to)
    after = collection.history(name)[:1]
    said = f"now {after[0].text}" if after != before else "which is as it was"
    text = f"The {kind} {name} has its earlier definition back: {said}."
    if isinstance(earlier, FileJob) and isinstance(reverted, FileJob) and earlier.function != reverted.function:
        text += f" Rows of other code stay; to replace them: volstream replay {name} --stale."
    if isinstance(reverted, Volume) and after != before:
        text += f" To apply it now: volstream refresh {name}."
    output.result(details.values(reverted), text)


@click.command("drop")
@click.argument("kind", type=click.Choice([*_KINDS, "table"]))
@click.argument("name", shell_complete=names_of())
@click.option("--if-exists", is_flag=True, help="Do nothing if it does not exist.")
@click.option("--cascade", is_flag=True, help="Volume: drop its streams and jobs too.")
@click.option("--force", is_flag=True, help="Job: drop it even if a batch is open.")
@click.option("--remove-outputs", is_flag=True, help="Job: remove the files that it wrote to another volume.")
@common
def drop_command(
    session: Session, output: Output, kind: str, name: str, if_exists: bool, cascade: bool, force: bool, remove_outputs: bool
) -> None:
    """Drop an object. Files and result tables stay; a source is dropped with its table, and a table with its rows."""
    given = {"cascade": cascade, "force": force, "remove_outputs": remove_outputs}
    chosen = {option: True for option, is_given in given.items() if is_given}
    for option in chosen:
        if kind != (of := "volume" if option == "cascade" else "job"):
            raise click.UsageError(f"--{option.replace('_', '-')} is for {of}s.")
    if kind == "table":
        session.sql(f"DROP TABLE {'IF EXISTS ' if if_exists else ''}{Name.parse(name).qualified}").collect()
        output.result({"kind": kind, "name": name, "dropped": True}, f"The table {name} is dropped.")
        return
    batch = _left_open(session, name) if force else None
    dropped = session.by_kind[kind].drop(name, if_exists=if_exists, **chosen)
    text = f"The {kind} {name} is dropped." if dropped else f"There is no {kind} {name}."
    if batch is not None:
        text += f" Batch {batch} was open: its rows may or may not be in the table; they have _batch_id = '{batch}'."
    output.result({"kind": kind, "name": name, "dropped": dropped}, text)


def _left_open(session: Session, job: str) -> str | None:
    """Returns the batch that a run of a job is processing, or was when it died."""
    stored = session.home.catalog.jobs.find(Name.parse(job))
    intent = None if stored is None else session.home.catalog.consumptions.open_intent(stored.stream_id)
    return None if intent is None else intent.batch_id


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def _rows(session: Session, kind: str, job: str | None, volume: str | None, limit: int) -> list[dict[str, Any]]:
    from volstream.ops.inspection import details

    match kind:
        case "batches":
            job_names = {owner.id: str(owner.name) for owner in session.jobs.list()}
            batches = session.batches.list(job, limit=limit)
            return [{**details.values(batch), "job": job_names.get(batch.job_id or "")} for batch in batches]
        case "tables":
            from volstream.ops.inspection.tables import list_tables

            shown = list_tables(session.home, limit)
            return [{**vars(row), "size": None if row.bytes is None else format_size(row.bytes)} for row in shown]
        case "rejected":
            volume_names = {entry.id: str(entry.name) for entry in session.volumes.list()}
            volume_id = session.volumes.get(volume).id if volume else None
            rejected = session.home.catalog.refreshes.rejected(volume_id, limit)
            return [{**details.values(message), "volume": volume_names.get(message.volume_id)} for message in rejected]
        case _:
            return details.shown(session.home, session.by_kind[kind.removesuffix("s")].list())


def _described(session: Session, kind: str, name: str) -> dict[str, Any]:
    from volstream.jobs.runs.lease import runs_of
    from volstream.ops.inspection import details
    from volstream.ops.inspection.status import job_status, problems

    if kind == "batch":
        return details.described_batch(session.home, session.batches.get(name), session.batches.failures(name))
    stored = session.by_kind[kind].get(name)
    described = details.described(session.home, stored)
    if not isinstance(stored, Job):
        return described
    status = job_status(session.home, stored, runs_of(session.home.catalog, [stored]))
    wrong = [problem.line for problem in problems({"jobs": [status]}, {})]
    owed = {key: status[key] for key in ("files", "done", "waiting", "waiting_since", "failed", "skipped")}
    return {**described, **owed, "problems": wrong}


def _in_order(values: Mapping[str, Any], *, whole: bool) -> dict[str, Any]:
    """Returns details in the order in which a person asks: what it is and how it does, what it is made of, and, if ``whole``, ids
    and what only volstream itself uses."""
    first = {key: values[key] for key in _FIRST if key in values}
    others = {key: value for key, value in values.items() if key not in first}
    ids = [key for key in others if key.endswith(("_id", "_ids"))]
    last = {key: others[key] for key in (*_LAST, *ids) if key in others}
    ordered = first | {key: value for key, value in others.items() if key not in last} | (last if whole else {})
    return {
        key: value if key in _DOCUMENTS else _text(key, value)
        for key, value in ordered.items()
        if value not in (None, [], (), {})
    }


def _text(key: str, value: Any) -> Any:
    """Returns options as they are given, texts in a list one after the other, what a dict says without ids, and other values as
    they are."""
    from volstream.ops.inspection import details

    if isinstance(value, Mapping):
        return in_a_line({key: item for key, item in value.items() if key != "id" and not key.endswith("_id")})
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return details.as_written(key, value)


def _show_table(output: Output, table: DescribedTable) -> None:
    """Prints what a table is, its columns, its newest commits, and a few rows."""
    own = ("table", "rows", "size", "written_on", "job", "primary_key", "streams", "not_committed", "version", "location")
    values = {**vars(table), "size": None if table.bytes is None else format_size(table.bytes)}
    output.details({key: values[key] for key in own if values[key] not in (None, [])})
    output.table([*map(vars, table.columns)], ("column", "type"), "No columns.")
    output.table([*map(vars, table.history)], ("version", "time", "operation", "rows"), "No commits.")
    if table.sample.error:
        output.message(table.sample.error)
    else:
        output.table(table.sample.rows, table.sample.columns, "No rows.")
