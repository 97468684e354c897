"""Cutting a plan into batches."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from tests import objects
from volstream.base.definitions import FileOrder, Volume
from volstream.base.model.paths import FileInfo
from volstream.base.model.work import Batch, Plan, PlanKind
from volstream.catalog import Catalog
from volstream.changes.directory import table
from volstream.changes.streams import net_files
from volstream.changes.streams.read import Range
from volstream.changes.streams.sources import VolumeSource
from volstream.jobs.plans import plan
from volstream.jobs.plans.plan import INSERT, MOVE, REMOVE, REPLACE, PlanRow, _groups, cut_plan, recut_plan
from volstream.jobs.plans.sizing import Limits
from volstream.tables.delta import places

ROWS = st.lists(
    st.builds(
        PlanRow,
        path=st.text(min_size=1, max_size=8),
        size=st.integers(0, 100),
        action=st.sampled_from([INSERT, REPLACE, REMOVE]),
        old_path=st.none(),
    )
    | st.builds(PlanRow, st.text(min_size=1, max_size=8), st.integers(0, 100), st.sampled_from([INSERT, MOVE]), st.just("old")),
    max_size=40,
    unique_by=lambda row: row.path,
).map(lambda rows: sorted(rows, key=lambda row: row.path.encode("utf-8", "surrogatepass")))
LIMITS = st.builds(Limits, files=st.integers(1, 10), bytes=st.integers(1, 300))


def cut(rows: list[PlanRow], limits: Limits) -> list[list[PlanRow]]:
    """The rows of each batch, by the bounds that were cut."""
    batches: list[list[PlanRow]] = []
    position = 0
    for group in _groups(rows, limits):
        end = next(index for index, row in enumerate(rows) if row.path == group.until_path) + 1
        batches.append(rows[position:end])
        position = end
    assert position == len(rows)
    return batches


@given(ROWS, LIMITS)
def test_every_row_is_in_one_batch_and_no_batch_is_empty(rows: list[PlanRow], limits: Limits) -> None:
    batches = cut(rows, limits)
    assert [row for batch in batches for row in batch] == rows
    assert all(batches)


@given(ROWS, LIMITS)
def test_a_batch_stays_within_the_limits_except_for_one_large_file(rows: list[PlanRow], limits: Limits) -> None:
    for batch in cut(rows, limits):
        assert len(batch) <= limits.files
        work = [row.size for row in batch if row.action in (INSERT, REPLACE)]
        assert sum(work) <= limits.bytes or len([row for row in batch if row.action != REMOVE]) == 1


@given(ROWS, LIMITS)
def test_a_batch_ends_only_when_the_next_row_does_not_fit(rows: list[PlanRow], limits: Limits) -> None:
    batches = cut(rows, limits)
    for batch, following in itertools.pairwise(batches):
        work = sum(row.size for row in batch if row.action in (INSERT, REPLACE))
        coming = following[0].size if following[0].action in (INSERT, REPLACE) else 0
        assert len(batch) == limits.files or work + coming > limits.bytes


@given(ROWS, LIMITS)
def test_the_counts_of_a_batch_match_its_content(rows: list[PlanRow], limits: Limits) -> None:
    for group, batch in zip(_groups(rows, limits), cut(rows, limits), strict=True):
        actions = [row.action for row in batch]
        assert group.files == len(batch) - actions.count(REMOVE)
        assert (group.replaced, group.removals) == (actions.count(REPLACE), actions.count(REMOVE))
        assert group.moves == sum(row.old_path is not None for row in batch)
        assert group.bytes == sum(row.size for row in batch if row.action in (INSERT, REPLACE))


def test_a_plans_files_are_read_in_the_order_of_their_parts(tmp_path: Path) -> None:
    location = tmp_path / "a plan"
    location.mkdir()
    for part, names in enumerate([["a", "b"], ["c"], []]):
        rows = {"relative_path": names, "size": [10] * len(names), "action": [REPLACE] * len(names)}
        pq.write_table(_table(rows), location / f"part-{part:05}-uuid.snappy.parquet")
    (location / "_SUCCESS").touch()
    source = objects.volume()
    job = objects.job(objects.stream(source))
    covered = Range(directory_of(source), "table", 3, 9, initial=False, append_only=False)
    made, batches = cut_plan("p", job, PlanKind.STREAM, covered, str(location), Limits(2, 1000))
    assert [(batch.number, batch.after_path, batch.until_path, batch.files, batch.replaced) for batch in batches] == [
        (1, None, "b", 2, 2),
        (2, "b", "c", 1, 1),
    ]
    assert (made.files, made.bytes, made.from_version, made.to_version) == (3, 30, 3, 9)
    assert len({batch.id for batch in batches}) == 2
    assert plan.contained_paths(str(location), ["a", "c", "d"]) == {"a", "c"}
    assert plan.contained_paths(str(location), ["a", "b", "c"], batches[0]) == {"a", "b"}
    assert plan.contained_paths(str(location), ["a", "b", "c"], batches[1]) == {"c"}


def write_plan(location: Path, parts: list[list[str]], size: int = 10) -> str:
    """A plan's files as Spark leaves them: each part sorted, and the parts in their order."""
    location.mkdir(parents=True)
    for number, names in enumerate(parts):
        rows = {"relative_path": names, "size": [size] * len(names), "action": [INSERT] * len(names)}
        pq.write_table(_table(rows), location / f"part-{number:05}-x.parquet", row_group_size=5)
    (location / "_SUCCESS").touch()
    return str(location)


def _table(columns: Mapping[str, Any]) -> pa.Table:
    missing = {"old_path": [None] * len(columns["relative_path"])}
    schema = [("action", pa.string()), ("relative_path", pa.string()), ("size", pa.int64()), ("old_path", pa.string())]
    return pa.Table.from_pydict({**missing, **columns}, schema=pa.schema(schema))


def test_the_first_and_last_source_path_of_moved_files_are_known_per_batch(tmp_path: Path) -> None:
    location = tmp_path / "p"
    location.mkdir()
    moved = {"a": None, "b": "z", "c": "é", "d": "Z", "e": "x", "f": None}
    rows = {"relative_path": [*moved], "size": [1] * 6, "action": [INSERT] * 6, "old_path": [*moved.values()]}
    pq.write_table(_table(rows), location / "part-00000-x.parquet", row_group_size=2)
    _, batches = cut_files(str(location), Limits(4, 1000))
    assert [batch.moves for batch in batches] == [3, 1]
    assert plan.origins(str(location), batches[0]) == ("Z", "é")
    assert plan.origins(str(location), batches[1]) == ("x", "x")
    assert plan.origins(str(location), replace(batches[0], moves=0)) is None
    assert plan.contained_paths(str(location), ["z", "x", "c"], batches[0], column="old_path") == {"z"}


def test_the_first_batch_of_a_plan_may_be_smaller_than_the_others(tmp_path: Path) -> None:
    location = write_plan(tmp_path / "p", [[f"{number:02}" for number in range(20)]])
    made, batches = cut_files(location, Limits(8, 1000), first=Limits(3, 1000))
    assert [batch.files for batch in batches] == [3, 8, 8, 1]
    assert made.files == 20


def test_the_rest_of_a_plan_is_recut_and_its_bounds_and_numbers_continue(tmp_path: Path) -> None:
    names = [f"{number:02}" for number in range(40)]
    location = write_plan(tmp_path / "p", [names[:17], names[17:]])
    made, batches = cut_files(location, Limits(5, 1000))
    again = recut_plan(made, batches[3], Limits(11, 1000))
    assert [(one.number, one.after_path, one.until_path, one.files) for one in again] == [
        (4, "14", "25", 11),
        (5, "25", "36", 11),
        (6, "36", "39", 3),
    ]
    assert {one.plan_id for one in again} == {made.id}


def directory_of(source: Volume) -> VolumeSource:
    return VolumeSource(Catalog("sqlite:///unused.db"), "/warehouse", source.id)


def cut_files(
    location: str, limits: Limits, first: Limits | None = None, order: FileOrder = FileOrder.PATH
) -> tuple[Plan, Sequence[Batch]]:
    source = objects.volume()
    covered = Range(directory_of(source), "table", 3, 9, initial=False, append_only=False)
    job = objects.job(objects.stream(source))
    return cut_plan("p", job, PlanKind.STREAM, covered, location, limits, first=first, where="size > 1", order=order)


def test_a_plan_exists_from_its_last_file_until_it_is_removed(tmp_path: Path) -> None:
    location = tmp_path / "plans" / "p"
    assert not plan.exists(str(location))
    location.mkdir(parents=True)
    assert not plan.exists(str(location))
    (location / "_SUCCESS").touch()
    assert plan.exists(str(location))
    (location / "part-00000.parquet").write_bytes(b"PAR1 and then the power was cut")
    assert not plan.exists(str(location))
    (location / "part-00000.parquet").unlink()
    assert places.inside(str(tmp_path / "plans")) == ["p"]
    places.remove(str(location))
    places.remove(str(location))
    assert not plan.exists(str(location))
    assert places.inside(str(tmp_path / "nowhere")) == []


def net(*rows: tuple[str, str, bool, bool]) -> pa.Table:
    """Net changes: path, etag, whether it was there, whether it is."""
    files = [FileInfo(path, 1, objects.NOW, etag) for path, etag, _, _ in rows]
    flags = [pa.array([row[at] for row in rows], pa.bool_()) for at in (2, 3)]
    found = table.rows_of_files(files, lambda path: path)
    return pa.table([*found.columns, pa.array([5] * len(rows), pa.int64()), *flags], schema=net_files.NET)


def planned(changes: pa.Table, *, possible: bool = True, rekey: bool = False) -> list[tuple[object, ...]]:
    columns = ("relative_path", "action", "old_path", "old_version")
    rows = plan.files_of_changes(changes, plan.Moves(possible, rekey)).select(columns).to_pylist()
    return [tuple(row.values()) for row in rows]


def test_net_changes_become_work_or_removals() -> None:
    changes = net(("a", "1", False, True), ("b", "2", True, True), ("c", "3", True, False))
    wanted = [("a", INSERT, None, None), ("b", REPLACE, None, None), ("c", REMOVE, None, None)]
    assert planned(changes) == planned(changes, possible=False) == wanted
    assert planned(net()) == []


def test_a_removed_and_an_added_file_with_the_same_content_are_one_file_of_the_plan() -> None:
    changes = net(("new", "x", False, True), ("old", "x", True, False), ("other", "y", True, False))
    removed = ("other", REMOVE, None, None)
    assert planned(changes) == [("new", INSERT, "old", "x"), removed]
    assert planned(changes, rekey=True) == [("new", MOVE, "old", "x"), removed]
    assert planned(changes, possible=False) == [("new", INSERT, None, None), ("old", REMOVE, None, None), removed]


def test_a_third_file_with_the_same_content_is_not_a_move_and_a_changed_one_does_not_count() -> None:
    two = net(("n1", "x", False, True), ("n2", "x", False, True), ("old", "x", True, False))
    assert [row[1:3] for row in planned(two)] == [(INSERT, None), (INSERT, None), (REMOVE, None)]
    changed = net(("kept", "x", True, True), ("new", "x", False, True), ("old", "x", True, False))
    assert planned(changed)[1] == ("new", INSERT, "old", "x")


def test_a_single_files_row_has_an_empty_list_of_members() -> None:
    # With NULL lists, Spark would visit all earlier ones for each row that it gives to Python.
    changes = net(("new", "x", False, True), ("overwritten", "y", True, True))
    for rows in (plan.files_of_changes(changes, plan.Moves(False, False)), plan.files_of_rows(changes, INSERT)):
        assert rows["members"].to_pylist() == [[], []]


def test_a_written_plan_is_read_back_in_batches(tmp_path: Path) -> None:
    location = str(tmp_path / "p")
    rows = net(*((f"{number:02}", f"{number}", False, True) for number in range(10)))
    plan.write((plan.files_of_rows(rows.slice(at, 5), INSERT) for at in (0, 5)), location)
    assert plan.exists(location)
    _, batches = cut_files(location, Limits(4, 1000))
    assert [(batch.until_path, batch.files) for batch in batches] == [("03", 4), ("07", 4), ("09", 2)]
    assert plan.removed_paths(location, batches[0]) == []


@given(
    st.lists(
        st.tuples(st.text("ab\u00e9\U0001f600", min_size=1, max_size=3), st.integers(-2, 2)),
        unique_by=lambda one: one[0],
        min_size=1,
    ),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_batches_of_the_newest_files_first_have_each_file_once(
    given_files: list[tuple[str, int]], files: int, again: int, kept: int
) -> None:
    times = {path: objects.NOW + timedelta(microseconds=moment) for path, moment in given_files}
    found = table.rows_of_files([FileInfo(path, 1, time, "e") for path, time in times.items()], lambda path: path)
    rows = plan.files_of_rows(found.append_column("commit_version", pa.array([1] * len(times), pa.int64())), INSERT)
    newest = sorted(times, key=lambda path: (-(times[path] - objects.NOW), path.encode()))
    with tempfile.TemporaryDirectory() as folder:
        location = f"{folder}/p"
        plan.write([plan.ordered(rows, FileOrder.NEWEST)], location)
        made, batches = cut_files(location, Limits(files, 1000), order=FileOrder.NEWEST)
        kept = min(kept, len(batches) - 1)
        batches = [*batches[:kept], *recut_plan(made, batches[kept], Limits(again, 1000))]
        taken = []
        for batch in batches:
            few = plan.small_batch_rows(made, batch)
            assert few is not None
            taken.append(few["relative_path"].to_pylist())
            assert taken[-1] == [path for path in newest if batch.covers(path, times[path])]
    assert [path for paths in taken for path in paths] == newest
    assert [batch.files for batch in batches] == [*map(len, taken)]
    assert [batch.number for batch in batches] == [*range(1, len(batches) + 1)]
