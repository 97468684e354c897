"""Daemons that share volumes evenly."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from volstream.catalog import Catalog
from volstream.catalog.leases import DISABLED, of_daemons
from volstream.server.daemon.sharing import ClusterMembers, Share


@pytest.mark.parametrize(("volumes", "daemons", "maximum"), [(4, 1, 4), (4, 2, 2), (5, 2, 3), (1, 2, 1), (0, 3, 0), (3, 0, 3)])
def test_a_share_is_an_even_part_rounded_up(volumes: int, daemons: int, maximum: int) -> None:
    share = Share()
    share.divide(volumes, daemons)
    assert share.maximum == maximum


def test_there_are_as_many_slots_as_the_share_and_they_are_returned() -> None:
    share = Share(2)
    with ExitStack() as held:
        assert [held.enter_context(share.place()) for _ in range(3)] == [True, True, False]
    with share.place() as free:
        assert free


def test_a_shrunken_share_grants_no_slot_before_enough_were_returned() -> None:
    share = Share(2)
    with share.place(), ExitStack() as second:
        second.enter_context(share.place())
        share.divide(2, 2)
        second.close()
        with share.place() as free:
            assert not free


def test_daemons_of_one_cluster_know_each_other_until_they_leave(catalog: Catalog) -> None:
    first, second = (ClusterMembers(catalog.leases, "default", 60) for _ in range(2))
    other = ClusterMembers(catalog.leases, "GPU", 60)
    assert (first.count(), other.count()) == (1, 1)
    assert (second.count(), first.count()) == (2, 2)
    second.leave()
    assert (first.count(), other.count()) == (1, 1)


def test_a_silent_daemon_is_not_counted_until_it_reports_again(catalog: Catalog) -> None:
    first, silent = ClusterMembers(catalog.leases, "DEFAULT", 60), ClusterMembers(catalog.leases, "DEFAULT", 0.001)
    assert silent.count() >= 0  # its lease has lapsed by now
    assert first.count() == 1
    assert ClusterMembers(catalog.leases, "DEFAULT", 60).count() == 2


def test_a_daemon_without_an_engine_leaves_volumes_to_others_and_says_why(catalog: Catalog) -> None:
    first, second = (ClusterMembers(catalog.leases, "default", 60) for _ in range(2))
    share = Share()
    for members, disabled, maximum in ((first, None, 4), (second, None, 2), (second, "no Java", 0), (first, "no Java", 4)):
        share.divide(4, members.count(disabled), disabled=disabled is not None)
        assert share.maximum == maximum, "all if no other daemon can run jobs either"
    assert {one.purpose for one in catalog.leases.held(of_daemons())} == {f"{DISABLED}no Java"}
    assert (first.count(), second.count()) == (1, 2)
