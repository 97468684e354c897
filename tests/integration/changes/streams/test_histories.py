"""Random histories against an independent model: each of 300 groups of rows is a history of its own, in shared commits."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.conftest import Home
from volstream.base.model.names import Name
from volstream.changes.changelog import Changelog, Deduplication, SnapshotDifference, TrackedChanges, changes_query
from volstream.changes.streams.read import Range
from volstream.changes.streams.sources import TableSource
from volstream.tables.delta.log import DeltaLog
from volstream.tables.delta.opened import newest_version

HISTORIES = 150  # in each of two tables
COMMITS = 8

Values = tuple[int, int, str]
ImmediateOutput = tuple[str, int, Values]


@dataclass
class Model:
    """What the table holds at each version: rows by an identity of the model's own, with the version that wrote them."""

    rows: dict[int, tuple[Values, int]] = field(default_factory=dict)
    at: dict[int, dict[int, tuple[Values, int]]] = field(default_factory=dict)
    born: list[tuple[int, int, Values]] = field(default_factory=list)
    next_row: int = 0

    def add(self, version: int, values: Values) -> None:
        self.rows[self.next_row] = (values, version)
        self.born.append((version, self.next_row, values))
        self.next_row += 1

    def net(self, first: int, last: int, key: Callable[[int, Values], Any], *, by_content: bool = True) -> list[ImmediateOutput]:
        """The net changes of ``(first, last]`` of rows identified by ``key``."""
        before, after = ({key(row, one[0]): one for row, one in self.at[v].items()} for v in (first, last))
        shown: list[ImmediateOutput] = []
        for identity in {*before, *after}:
            old, new = before.get(identity), after.get(identity)
            if old is not None and new is not None and (old[0] == new[0] if by_content else old[1] == new[1]):
                continue
            if old is not None:
                shown.append(("DELETE" if new is None else "UPDATE_BEFORE", old[1], old[0]))
            if new is not None:
                shown.append(("INSERT" if old is None else "UPDATE_AFTER", new[1], new[0]))
        return sorted(shown)

    def appended(self, first: int, last: int) -> list[ImmediateOutput]:
        return sorted(("INSERT", version, values) for version, _, values in self.born if first < version <= last)


class Table:
    """A tracked table and its model, changed together."""

    def __init__(self, home: Home, seed: int, *, vectors: bool) -> None:
        self.home = home
        self.random = random.Random(seed)
        self.model = Model()
        home.sql(f"CREATE TABLE t$ (h INT, id INT, v STRING) TBLPROPERTIES ('delta.enableDeletionVectors' = '{vectors}')")
        home.sql("ALTER TABLE t$ SET PROPERTIES ('change_tracking' = 'true')")
        self.log = DeltaLog(home.location("t"))
        self.start = self._note()

    def change(self, act: str) -> None:
        version = self._version() + 1
        getattr(self, f"_{act}")(version)
        if self._version() < version:  # it found nothing to do
            assert self.model.rows == self.model.at[version - 1], act
            return
        self._note()

    def _merge(self, version: int) -> None:
        taken = {values[:2] for values, _ in self.model.rows.values()}
        by_history: dict[int, list[int]] = {}
        for row, (values, _) in self.model.rows.items():
            by_history.setdefault(values[0], []).append(row)
        source: list[tuple[int, int, str, str]] = []
        for history in range(HISTORIES):
            for row in by_history.get(history, []):
                (h, number, value), _ = self.model.rows[row]
                chance = self.random.random()
                if chance < 0.3:
                    value = self.random.choice("abc")
                    source.append((h, number, value, "change"))
                    self.model.rows[row] = ((h, number, value), version)
                elif chance < 0.5:
                    source.append((h, number, value, "remove"))
                    del self.model.rows[row]
            for number in range(4):
                if (history, number) not in taken and self.random.random() < 0.4:
                    value = self.random.choice("abc")
                    source.append((history, number, value, "add"))
                    self.model.add(version, (history, number, value))
        self._view(source)
        self.home.session.spark.sql(
            f"MERGE INTO delta.`{self.home.location('t')}` t USING merged s ON t.h = s.h AND t.id = s.id "
            "WHEN MATCHED AND s.act = 'remove' THEN DELETE WHEN MATCHED THEN UPDATE SET t.v = s.v "
            "WHEN NOT MATCHED THEN INSERT (h, id, v) VALUES (s.h, s.id, s.v)"
        ).collect()

    def _insert(self, version: int) -> None:
        taken = {values[:2] for values, _ in self.model.rows.values()}
        free = [(h, 5) for h in range(HISTORIES) if (h, 5) not in taken and self.random.random() < 0.5] or [(0, 99)]
        self._view([(h, number, "new", "") for h, number in free])
        self.home.session.spark.sql(f"INSERT INTO delta.`{self.home.location('t')}` SELECT h, id, v FROM merged").collect()
        for h, number in free:
            self.model.add(version, (h, number, "new"))

    def _update(self, version: int) -> None:
        self.home.sql("UPDATE t$ SET v = 'u' WHERE id = 1 OR h % 7 = 3")
        for row, ((h, number, _), _) in list(self.model.rows.items()):
            if number == 1 or h % 7 == 3:
                self.model.rows[row] = ((h, number, "u"), version)

    def _delete(self, version: int) -> None:
        self.home.sql("DELETE FROM t$ WHERE id = 2 OR h % 11 = 5")
        kept = {row: one for row, one in self.model.rows.items() if not (one[0][1] == 2 or one[0][0] % 11 == 5)}
        self.model.rows = kept

    def _overwrite(self, version: int) -> None:
        self.home.sql("INSERT OVERWRITE t$ SELECT h, id, CASE WHEN id = 0 THEN 'o' ELSE v END FROM t$ WHERE h % 5 > 0")
        old = [values for values, _ in self.model.rows.values() if values[0] % 5 > 0]
        self.model.rows = {}
        for h, number, value in old:
            self.model.add(version, (h, number, "o" if number == 0 else value))

    def _optimize(self, version: int) -> None:
        self.home.session.spark.sql(f"OPTIMIZE delta.`{self.home.location('t')}`").collect()

    def _restore(self, version: int) -> None:
        to = self.random.choice([one for one in self.model.at if one > self.start])
        self.home.sql(f"RESTORE TABLE t$ TO VERSION AS OF {to}")
        self.model.rows = dict(self.model.at[to])

    def _view(self, rows: list[tuple[int, int, str, str]]) -> None:
        table = pa.table(dict(zip(("h", "id", "v", "act"), map(list, zip(*rows, strict=True)), strict=True)))
        self.home.session.spark.createDataFrame(table).createOrReplaceTempView("merged")

    def _note(self) -> int:
        version = self._version()
        self.model.at[version] = dict(self.model.rows)
        return version

    def _version(self) -> int:
        version = newest_version(self.log.location)
        assert version is not None
        return version

    def stream(self, first: int, last: int, key: tuple[str, ...], *, append_only: bool) -> list[ImmediateOutput]:
        """What a stream shows of ``(first, last]``."""
        source = TableSource(Name.parse(self.home.name("t")), self.home.location("t"), self.home.session.home.warehouse, key)
        covered = Range(source, "", first, last, initial=False, append_only=append_only)
        return rows(self.home.session.home.reader.frame(self.home.session.spark, covered).collect())


def rows(found: list[Any]) -> list[ImmediateOutput]:
    return sorted((row[0], row["__commit_version"], (row["h"], row["id"], row["v"])) for row in found)


def by_row(row: int, values: Values) -> Any:
    return row


def by_key(row: int, values: Values) -> Any:
    return values[:2]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("seed", "vectors"), [(1, True), (2, False)], ids=["vectors", "rewritten"])
def test_random_histories_agree_with_a_model(home: Home, seed: int, vectors: bool) -> None:
    """Rules R-10, R-11, R-12 and R-13 of docs/streams.md."""
    table = Table(home, seed, vectors=vectors)
    table.change("merge")
    acts = ["merge", "merge", "insert", "update", "delete", "overwrite", "optimize", "restore"]
    for _ in range(COMMITS):
        table.change(table.random.choice(acts))
    model = table.model
    versions = sorted(model.at)
    ranges = {(versions[0], versions[-1]), (versions[1], versions[-1])}
    while len(ranges) < 5:
        first, last = sorted(table.random.sample(versions, 2))
        ranges.add((first, last))
    location, columns = home.location("t"), ("h", "id", "v")
    for first, last in sorted(ranges):
        assert table.stream(first, last, (), append_only=False) == model.net(first, last, by_row), (first, last)
        assert table.stream(first, last, ("h", "id"), append_only=False) == model.net(first, last, by_key), (first, last)
        assert table.stream(first, last, (), append_only=True) == model.appended(first, last), (first, last)
        logs: Mapping[str, Changelog] = {
            "files": TrackedChanges(location, columns, columns, home.session.home.warehouse),
            "snapshots": SnapshotDifference(location, columns, columns, {}),
        }
        found = {name: net_of(home, log, first, last) for name, log in logs.items()}
        expected = sorted((kind, values) for kind, _, values in model.net(first, last, by_row, by_content=False))
        for name, one in found.items():
            assert one == expected, (name, first, last)


def net_of(home: Home, log: Changelog, first: int, last: int) -> list[tuple[str, Values]]:
    names = {"insert": "INSERT", "delete": "DELETE", "update_preimage": "UPDATE_BEFORE", "update_postimage": "UPDATE_AFTER"}
    sql = changes_query(log, first + 1, last, Deduplication.NET_CHANGES, compute_updates=True)
    found = [(names[row["_change_type"]], (row["h"], row["id"], row["v"])) for row in home.session.spark.sql(sql).collect()]
    return sorted(found)
