"""The ledger of outputs: attempts decide what of it counts."""

from __future__ import annotations

import pytest

from tests import objects
from volstream.base.definitions import Job
from volstream.base.model.work import Intent, Target
from volstream.catalog import Catalog
from volstream.catalog.consumptions import BatchOutcome
from volstream.catalog.outputs import Output, OutputState
from volstream.errors import FencedError

TARGET = Target("/t", "table", 0)


def attempt(catalog: Catalog, job: Job) -> Intent:
    current = catalog.streams.by_id(job.stream_id)
    assert current is not None
    plan = catalog.consumptions.open_plan(job.stream_id)
    if plan is None:
        plan, _ = objects.store_plan(catalog, job, from_version=current.offset)
    batch = catalog.consumptions.next_batch(plan)
    assert batch is not None
    return catalog.consumptions.begin(batch, owner="me", target=TARGET)


def output(intent: Intent, path: str, source: str, table: str = "public.t") -> Output:
    return Output(
        table=table,
        volume_id="v",
        path=path,
        source=source,
        attempt=str(intent.attempt),
        size=1,
        etag=f"{source} {intent.sequence}",
        staged=f"staged/{path}",
    )


def make(catalog: Catalog, job: Job, made: dict[str, str], replaced: tuple[str, ...] = (), *, commit: bool = True) -> Intent:
    """An attempt that makes outputs, by path, of files, and replaces the rows of files."""
    intent = attempt(catalog, job)
    catalog.outputs.note("public.t", str(intent.attempt), [output(intent, *one) for one in made.items()], replaced)
    if commit:
        catalog.consumptions.commit(intent, BatchOutcome(1, 0, 1))
    else:
        catalog.consumptions.abort(intent)
    return intent


def found(catalog: Catalog) -> dict[str, tuple[str, str]]:
    rows = {one.path: (one.source, "live") for one in catalog.outputs.live("public.t")}
    return rows | {
        one.path: (one.source, "dead") for one in catalog.outputs.unfinished("public.t") if one.state is OutputState.DEAD
    }


def test_outputs_of_an_open_attempt_do_not_count(catalog: Catalog, job: Job) -> None:
    intent = attempt(catalog, job)
    catalog.outputs.note("public.t", str(intent.attempt), [output(intent, "x", "a")], ["a"])
    catalog.outputs.resolve_attempts("public.t")
    assert catalog.outputs.live("public.t") == []
    assert catalog.outputs.unfinished("public.t") == []
    assert catalog.outputs.unfinished_tables() == ["public.t"]
    assert [one.path for one in catalog.outputs.of_attempt(str(intent.attempt))] == ["x"]


def test_a_committed_attempt_replaces_the_outputs_of_its_files_and_keeps_paths_that_it_has_again(
    catalog: Catalog, job: Job
) -> None:
    make(catalog, job, {"x": "a", "y": "a", "z": "b"})
    catalog.outputs.resolve_attempts("public.t")
    catalog.outputs.placed([(one, "changed") for one in catalog.outputs.unfinished("public.t")])
    assert {one.etag for one in catalog.outputs.live("public.t")} == {"changed"}
    make(catalog, job, {"x": "a", "z": "a"}, ("a", "b"))
    catalog.outputs.resolve_attempts("public.t")
    assert found(catalog) == {"x": ("a", "live"), "y": ("a", "dead"), "z": ("a", "live")}
    assert [one.state for one in catalog.outputs.unfinished("public.t")] == ["live", "live", "dead"]
    catalog.outputs.forget([one for one in catalog.outputs.unfinished("public.t") if one.state == "dead"])
    assert set(found(catalog)) == {"x", "z"}


def test_an_aborted_attempt_leaves_what_was_live_and_its_own_paths_are_dead(catalog: Catalog, job: Job) -> None:
    make(catalog, job, {"x": "a", "y": "b"})
    catalog.outputs.resolve_attempts("public.t")
    make(catalog, job, {"x": "a", "new": "a"}, ("a", "b"), commit=False)
    catalog.outputs.resolve_attempts("public.t")
    assert found(catalog) == {"x": ("a", "live"), "y": ("b", "live"), "new": ("a", "dead")}
    assert {path: one.source for path, one in catalog.outputs.at("v", ["x", "new", "none"]).items()} == {"x": "a"}
    assert [one.path for one in catalog.outputs.of_sources("public.t", ["b", "c"])] == ["y"]


def test_an_attempt_that_the_catalog_no_longer_knows_takes_nothing_away(catalog: Catalog, job: Job) -> None:
    make(catalog, job, {"x": "a", "y": "b"})
    catalog.outputs.resolve_attempts("public.t")
    intent = attempt(catalog, job)
    catalog.outputs.note("public.t", str(intent.attempt), [output(intent, "new", "a"), output(intent, "x", "a")], ["a", "b"])
    stream = catalog.streams.by_id(job.stream_id)
    assert stream is not None
    with catalog.database.transaction() as transaction:
        catalog.consumptions.forget(transaction, job, force=True)
        catalog.jobs.remove(transaction, job)
        catalog.streams.remove(transaction, stream)
    catalog.outputs.resolve_attempts("public.t")
    assert found(catalog) == {"x": ("a", "live"), "y": ("b", "live"), "new": ("a", "live")}


def test_an_attempt_that_was_ended_notes_nothing(catalog: Catalog, job: Job) -> None:
    intent = make(catalog, job, {}, commit=False)
    with pytest.raises(FencedError):
        catalog.outputs.note("public.t", str(intent.attempt), [output(intent, "x", "a")], [])


def test_all_outputs_of_a_table_can_be_ended(catalog: Catalog, job: Job) -> None:
    make(catalog, job, {"x": "a"})
    catalog.outputs.resolve_attempts("public.t")
    assert catalog.outputs.unfinished_tables() == ["public.t"]
    catalog.outputs.end("public.t")
    assert found(catalog) == {"x": ("a", "dead")}
