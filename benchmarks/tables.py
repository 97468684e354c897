"""Streams on tables: the cost of reading 100 changed rows, compared with Delta's change feed and the difference of two snapshots.

Tables of 10^4, 10^5 and 10^6 rows, with a primary key and without; the check for new changes; and the overhead of a
consumption over the DML alone. ``python -m benchmarks --part tables``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from benchmarks.report import Figures
from volstream.api.session import Session
from volstream.base.model.names import Name
from volstream.changes.changelog import Deduplication, SnapshotDifference, changes_query
from volstream.sql.text import literal, table_at
from volstream.tables.delta import places
from volstream.tables.delta.opened import newest_version

#: Number of rows that a commit changes: three fifths are updated, the others deleted and inserted.
_CHANGED = 100

_COLUMNS = ("id", "name", "price")


class Table:
    """Two tables with the same content, one without and one with a key, each with a stream; and a table to write to."""

    def __init__(self, session: Session, size: int) -> None:
        self.session = session
        self.size = size
        self._next = size
        for name, key in ((f"plain{size}", ""), (f"keyed{size}", " PRIMARY KEY")):
            session.sql(f"CREATE TABLE {name} (id BIGINT NOT NULL{key}, name STRING, price DOUBLE)")
            session.sql(f"ALTER TABLE {name} SET PROPERTIES ('change_tracking' = 'true')").collect()
            session.spark.range(size).selectExpr("id", "concat('name of ', id) AS name", "CAST(id AS DOUBLE) AS price").coalesce(
                1
            ).write.format("delta").mode("append").save(self.location(name))
            session.streams.create(f"s_{name}", table=name)
        session.sql(f"CREATE TABLE copy{size} (id BIGINT, name STRING, price DOUBLE)").collect()

    def location(self, name: str) -> str:
        return places.table_location(self.session.home.warehouse, Name.parse(name))

    def change(self) -> None:
        """Commits 100 changes to each table; the streams then hold only these."""
        keys = random.Random(self._next).sample(range(self.size), _CHANGED * 4 // 5)
        rows = [(key, "remove" if number % 4 == 3 else "update") for number, key in enumerate(keys)]
        rows += [(self._next + number, "add") for number in range(_CHANGED // 5)]
        self._next += _CHANGED // 5
        values = ", ".join(f"({key}L, '{act}')" for key, act in rows)
        for name in ("plain", "keyed"):
            self.session.streams.advance(f"s_{name}{self.size}")
            self.session.sql(
                f"MERGE INTO {name}{self.size} t USING (SELECT * FROM VALUES {values} AS v(id, act)) s ON t.id = s.id "
                "WHEN MATCHED AND s.act = 'remove' THEN DELETE WHEN MATCHED THEN UPDATE SET price = t.price + 0.5 "
                "WHEN NOT MATCHED AND s.act = 'add' THEN INSERT (id, name, price) VALUES (s.id, 'new', 0)"
            ).collect()

    def stream(self, name: str) -> Callable[[], object]:
        return lambda: self.session.table(f"s_{name}{self.size}").toArrow()

    def source(self) -> object:
        location = self.location(f"plain{self.size}")
        version = newest_version(location)
        return self.session.spark.sql(f"SELECT * FROM table_changes_by_path({literal(location)}, {version}, {version})").toArrow()

    def snapshots(self) -> object:
        location = self.location(f"plain{self.size}")
        version = newest_version(location) or 0
        difference = SnapshotDifference(location, _COLUMNS, _COLUMNS, {})
        text = changes_query(difference, version, version, Deduplication.NET_CHANGES, compute_updates=True)
        return self.session.spark.sql(text).toArrow()

    def consume(self) -> object:
        return self.session.sql(f"INSERT INTO copy{self.size} SELECT id, name, price FROM s_keyed{self.size}").collect()

    def bare(self) -> object:
        """Runs the same DML on the same rows, without a stream's bookkeeping."""
        location = self.location(f"keyed{self.size}")
        version = newest_version(location)
        target = table_at(self.location(f"copy{self.size}"))
        return self.session.spark.sql(
            f"INSERT INTO {target} SELECT id, name, price FROM table_changes_by_path({literal(location)}, {version}, {version})"
        ).collect()


def measure(session: Session, sizes: Sequence[int], rounds: int, figures: Figures) -> None:
    """Runs all measurements; the sizes in turns. The first round warms up and is not counted."""
    tables = [Table(session, size) for size in sizes]
    for number in range(rounds + 1):
        for table in tables:
            table.change()
            steps: dict[str, Callable[[], object]] = {
                "stream, by row id": table.stream("plain"),
                "stream, by key": table.stream("keyed"),
                "Delta's change feed": table.source,
                "difference of snapshots": table.snapshots,
                "bare INSERT of the feed": table.bare,
                "consumption by key": table.consume,
            }
            for scenario, step in steps.items():
                began = time.perf_counter()
                step()
                if number:
                    figures.note(scenario, table.size, "volstream", time.perf_counter() - began)
            began = time.perf_counter()
            for _ in range(100):
                assert not session.streams.has_data(f"s_keyed{table.size}")
            if number:
                figures.note("100 looks for something new", table.size, "volstream", time.perf_counter() - began)
