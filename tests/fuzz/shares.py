"""A run of the fuzzer, divided among processes."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.fuzz.fuzzer import Finding, fuzz
from tests.fuzz.targets import CommandLine, readers


def part(seed: str, inputs: int) -> dict[str, int]:
    """One process's share. Findings are printed."""
    sys.stdin = Path(os.devnull).open()  # noqa: SIM115  # as long as the process
    with tempfile.TemporaryDirectory(prefix="volstream-fuzz-") as folder:
        commands = CommandLine(Path(folder) / "home")
        counts: Counter[str] = Counter()
        counts.update(fuzz([*readers(), *commands.targets()], seed, inputs, lambda one: _tell(one, counts)))
        return counts


def _tell(finding: Finding, counts: Counter[str]) -> None:
    counts["findings"] += 1
    print(f"--- {finding.target}: {finding.input[:400]!r}\n{finding.trace[-3000:]}", file=sys.stderr, flush=True)  # noqa: T201


def run(seed: int, inputs: int, processes: int) -> Counter[str]:
    """All shares; how many inputs each target got, and the findings."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        shares = [(f"{seed} {number}", inputs // processes) for number in range(processes)]
        return sum((Counter(one) for one in pool.starmap(part, shares)), Counter())
