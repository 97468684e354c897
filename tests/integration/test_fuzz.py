"""Broken inputs end in volstream's own errors: a few in every run, a million in the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.fuzzer import Finding, fuzz
from tests.fuzz.shares import run
from tests.fuzz.targets import CommandLine, Target, readers


def test_no_parser_raises_an_undocumented_exception() -> None:
    found: list[Finding] = []
    fuzz(readers(), "every run", 2000, found.append)
    assert found == []


def test_every_command_ends_in_a_documented_way(tmp_path: Path) -> None:
    found: list[Finding] = []
    fuzz(CommandLine(tmp_path / "home").targets(), "every run", 60, found.append)
    assert found == []


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_million_inputs_find_nothing() -> None:
    assert run(1, 1_000_000, 2)["findings"] == 0


def _fails(text: str) -> None:
    raise KeyError(text[:1])


def test_each_unexpected_answer_is_reported_once() -> None:
    found: list[Finding] = []
    fuzz([Target("t", ["a"], lambda text: _fails("x"), 1)], "seed", 10, found.append)
    [one] = found
    assert (one.target, "KeyError" in one.trace) == ("t", True)
