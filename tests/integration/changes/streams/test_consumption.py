"""Consumptions that compete with a job for their stream, without an engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from tests import objects
from tests.waiting import eventually
from volstream.catalog import Catalog
from volstream.changes.streams.consume import Consumer, Consumption
from volstream.changes.streams.read import StreamReader
from volstream.errors import StreamBusyError
from volstream.tables.delta.writer import DeltaWriter


def test_a_plan_opened_by_a_job_while_its_stream_is_being_claimed_is_not_dropped(tmp_path: Path) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    _, on_it, job = objects.store_job(catalog)
    other = objects.stream(id="~", name="later")  # taken after the job's: in the order of ids
    with catalog.database.transaction() as transaction:
        catalog.streams.add(transaction, other)
    catalog.leases.acquire("stream:~", "elsewhere/1/1.00/x", "test", 60)
    consumer = Consumer(catalog, cast("DeltaWriter", None))
    reader = StreamReader(catalog, str(tmp_path))
    with ThreadPoolExecutor(1) as pool:
        consumption = Consumption(catalog, reader, consumer, lease_seconds=10, timeout=2)
        taking = pool.submit(consumption.take, on_it, other)
        eventually(lambda: f"stream:{on_it.id}" in [one.name for one in catalog.leases.held()])
        made, _ = objects.store_plan(catalog, job)
        catalog.leases.release("stream:~", "elsewhere/1/1.00/x")
        with pytest.raises(StreamBusyError):
            taking.result(20)
    assert catalog.consumptions.open_plan(on_it.id) == made
    with pytest.raises(StreamBusyError), consumption:
        consumption.free(on_it)
    catalog.close()
