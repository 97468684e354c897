"""Who owns a home."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from volstream.base import config
from volstream.base.config import Settings
from volstream.spark.engine.owner import HomeLock, Owner, present_owner


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return config.load(tmp_path)


def test_a_home_has_one_owner_until_it_is_released(settings: Settings) -> None:
    me, first, second = Owner.current_process("daemon"), HomeLock(settings), HomeLock(settings)
    assert first.try_acquire(me)
    assert not second.try_acquire(me)
    first.release()
    assert second.try_acquire(me)
    second.release()


def test_the_owner_is_known_by_pid_and_kind(settings: Settings) -> None:
    lock = HomeLock(settings)
    assert present_owner(settings) is None
    lock.try_acquire(Owner.current_process("background"))
    owner = present_owner(settings)
    assert owner is not None
    assert (owner.pid, owner.kind) == (os.getpid(), "background")
    lock.release()
    assert present_owner(settings) is None


def test_a_failed_attempt_leaves_the_name_of_the_owner(settings: Settings) -> None:
    lock = HomeLock(settings)
    lock.try_acquire(Owner.current_process("daemon"))
    HomeLock(settings).try_acquire(Owner(1, "", "background"))
    owner = present_owner(settings)
    lock.release()
    assert owner == Owner.current_process("daemon")


def test_a_name_left_by_a_killed_owner_does_not_count(settings: Settings) -> None:
    lock = HomeLock(settings)
    me = Owner.current_process("daemon")
    lock.try_acquire(dataclasses.replace(me, started=f"{me.started}0"))  # the pid is used again
    assert present_owner(settings) is None
    lock.release()
