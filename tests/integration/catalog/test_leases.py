"""Leases: one holder at a time, taken over when the holder is gone or silent."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack

import pytest
from sqlalchemy import delete, update

from tests.processes import race
from tests.waiting import eventually
from volstream.base.processes import new_owner
from volstream.catalog import Catalog, tables
from volstream.catalog.leases import Leases, lease
from volstream.errors import CatalogError


def expire(catalog: Catalog, name: str) -> None:
    with catalog.database.transaction() as transaction:
        past = catalog.database.now(transaction) - 0.001
        transaction.execute(update(tables.leases).where(tables.leases.c.name == name).values(expires=past))


def elsewhere() -> str:
    """A process of another host."""
    return f"not-{socket.gethostname()}/{os.getpid()}/1.00/abcd"


def test_a_free_lease_is_acquired_and_a_held_one_names_its_holder(catalog: Catalog) -> None:
    assert catalog.leases.acquire("volume:1", "host-a", "daemon", 60) is None
    other = catalog.leases.acquire("volume:1", "host-b", "refresh", 60)
    assert other is not None
    assert (other.name, other.owner, other.purpose) == ("volume:1", "host-a", "daemon")
    assert catalog.leases.acquire("volume:2", "host-b", "refresh", 60) is None


def test_a_renewal_extends_the_lease(catalog: Catalog) -> None:
    catalog.leases.acquire("name", "me", "test", 10)
    (before,) = catalog.leases.held()
    assert catalog.leases.acquire("name", "me", "test", 100) is None
    (after,) = catalog.leases.held()
    assert 80 < after.expires - before.expires < 110


def test_an_expired_lease_is_free(catalog: Catalog) -> None:
    catalog.leases.acquire("name", "silent", "test", 60)
    expire(catalog, "name")
    assert catalog.leases.held() == []
    assert catalog.leases.acquire("name", "next", "test", 60) is None
    assert [lease.owner for lease in catalog.leases.held()] == ["next"]


def test_a_lease_of_a_dead_process_on_this_host_is_free_at_once(catalog: Catalog) -> None:
    code = "from volstream.base.processes import new_owner; print(new_owner())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    catalog.leases.acquire("name", ended.stdout.strip(), "test", 3600)
    assert catalog.leases.held() == []
    assert catalog.leases.acquire("name", new_owner(), "test", 60) is None


def test_a_lease_of_another_host_is_held_until_it_expires(catalog: Catalog) -> None:
    catalog.leases.acquire("name", elsewhere(), "test", 60)
    assert catalog.leases.acquire("name", new_owner(), "test", 60) is not None


def test_a_lease_taken_while_the_clock_was_an_hour_ahead_is_free(catalog: Catalog) -> None:
    catalog.leases.acquire("name", elsewhere(), "test", 3660)
    assert catalog.leases.held() == []
    assert catalog.leases.acquire("name", new_owner(), "test", 60) is None


def test_a_release_frees_only_our_own_lease(catalog: Catalog) -> None:
    catalog.leases.acquire("name", "me", "test", 60)
    catalog.leases.release("name", "you")
    assert [lease.owner for lease in catalog.leases.held()] == ["me"]
    catalog.leases.release("name", "me")
    catalog.leases.release("name", "me")
    assert catalog.leases.held() == []


@pytest.mark.long
def test_exactly_one_of_several_racing_processes_gets_a_lease(url: str, catalog: Catalog) -> None:
    code = """
import atexit, sys, uuid
from volstream.catalog import Catalog
catalog = Catalog(sys.argv[1])
atexit.register(catalog.close)
catalog.leases.held()
owner = uuid.uuid4().hex
input()
for number in range(10):
    print(catalog.leases.acquire(f"lease {number}", owner, "race", 60.0) is None)
"""
    answers = [text.splitlines() for text in race(code, [url], processes=3)]
    assert [sorted(round_) for round_ in zip(*answers, strict=True)] == [["False", "False", "True"]] * 10


def test_a_held_lease_is_renewed_while_the_block_runs_and_released_at_its_end(catalog: Catalog) -> None:
    seconds = 2.0  # a lease of a moment lapses where the machine pauses for one
    with lease(catalog.leases, "name", "me", "test", seconds) as other:
        assert other is None
        (first,) = catalog.leases.held()
        eventually(lambda: catalog.leases.held()[0].expires > first.expires)
        with lease(catalog.leases, "name", "you", "test", seconds) as in_the_way:
            assert in_the_way is not None
            assert in_the_way.owner == "me"
    assert catalog.leases.held() == []
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "leases"])


def test_many_leases_are_renewed_by_one_thread_in_one_transaction(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed: list[int] = []
    extend = catalog.leases.extend

    def counted(held: Sequence[tuple[str, str]], seconds: float) -> set[str]:
        renewed.append(len(held))
        return extend(held, seconds)

    monkeypatch.setattr(catalog.leases, "extend", counted)
    with ExitStack() as held:
        lost = [threading.Event() for _ in range(40)]
        for number, one in enumerate(lost):
            assert held.enter_context(lease(catalog.leases, f"name{number}", f"me{number}", "test", 3.0, one.set)) is None
        first = {one.name: one.expires for one in catalog.leases.held()}
        eventually(lambda: all(one.expires > first[one.name] for one in catalog.leases.held()))
        assert renewed[0] == 40
        assert [thread.name for thread in threading.enumerate()].count("leases") == 1
        with catalog.database.transaction() as transaction:
            transaction.execute(update(tables.leases).where(tables.leases.c.name == "name7").values(owner="you"))
            transaction.execute(delete(tables.leases).where(tables.leases.c.name == "name8"))
        assert lost[7].wait(10)
        eventually(lambda: "name8" in {one.name for one in catalog.leases.held()})
        assert sum(one.is_set() for one in lost) == 1
    assert [one.name for one in catalog.leases.held()] == ["name7"]


def test_a_lease_is_released_when_the_block_fails(catalog: Catalog) -> None:
    try:
        with lease(catalog.leases, "name", "me", "test", 60):
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert catalog.leases.held() == []


def test_the_holder_is_notified_when_another_process_has_the_lease(catalog: Catalog) -> None:
    lost = threading.Event()
    with lease(catalog.leases, "name", "me", "test", 1.0, lost.set) as other:
        assert other is None
        with catalog.database.transaction() as transaction:
            transaction.execute(update(tables.leases).values(owner="you"))
        assert lost.wait(10)
    assert [lease.owner for lease in catalog.leases.held()] == ["you"]


class _Full(Leases):
    """Cannot write a release while its disk is full."""

    full = True

    def release(self, name: str, owner: str) -> None:
        if self.full:
            raise CatalogError("No space left.")
        super().release(name, owner)


def test_a_lease_that_could_not_be_released_is_released_later_unless_its_owner_took_it_again(catalog: Catalog) -> None:
    leases = _Full(catalog.database)
    for name in ("left", "again"):
        with lease(leases, name, "me", "test", 60):
            pass
    assert [held.name for held in leases.held()] == ["again", "left"]
    with lease(leases, "again", "me", "test", 60):
        leases.full = False
        eventually(lambda: [held.name for held in leases.held()] == ["again"])
    assert leases.held() == []
