"""Ten thousand files, one in a hundred of them poisonous: good ones land once, bad ones are listed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Place
from volstream.base import config
from volstream.base.config import Settings
from volstream.base.model.work import FailureKind

FILES = 10_000

#: What each kind of bad file makes the function do, and what has to be reported. Each kind has the same number of files.
POISON = {
    "raises": ("raise ValueError(file.name)", FailureKind.RAISED, "ValueError: raises"),
    "exits": ("sys.exit(3)", FailureKind.RAISED, "SystemExit: 3"),
    "never_ends": ("time.sleep(60)", FailureKind.TIMED_OUT, "longer than 2s"),
    "crashes": ("ctypes.string_at(0)", FailureKind.WORKER_DIED, "killed by SIGSEGV"),
    "is_killed": ("os.kill(os.getpid(), 9)", FailureKind.WORKER_DIED, "killed by SIGKILL"),
    "leaves": ("os._exit(0)", FailureKind.WORKER_DIED, "ended with exit status 0"),
    "hoards": ("bytearray(1 << 32)", FailureKind.OUT_OF_MEMORY, "more than 1.0 GiB"),
    "lies": ("return {'n': 'no number'}", FailureKind.WRONG_RESULT, "Column 'n'"),
    "vanishes": ("file.local_path().unlink()", FailureKind.VANISHED, "no longer existed"),
    "changes": ("file.local_path().write_text('another')", FailureKind.CHANGED, "changed"),
}

FUNCTION = "import ctypes, os, sys, time\ndef f(file):\n" + "".join(
    f"    if file.name.startswith({name!r}): {deed}\n" for name, (deed, _, _) in POISON.items()
)
FUNCTION += "    if file.name.startswith('loud'): print('x' * 5_000_000); os.write(2, b'x' * 100_000)\n"
FUNCTION += "    return {'n': len(file.read_bytes())}\n"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return config.load(
        tmp_path / "home", settle_seconds=0.05, retry_first_seconds=3600.0, lease_seconds=5.0, function_memory="1GiB"
    )


def names() -> Iterator[tuple[str, str | None]]:
    """Names of the files, and the kind of their poison."""
    kinds = list(POISON)
    for number in range(FILES):
        kind = kinds[number // 100 % len(kinds)] if number % 100 == 50 else None
        yield f"{number % 7}/{kind or ('loud' if number % 500 == 0 else 'good')}-{number}", kind


@pytest.mark.long
def test_good_files_land_once_and_each_bad_one_is_listed_with_its_reason(place: Place) -> None:
    poison = {}
    good = []
    for name, kind in names():
        place.put(name, name)
        if kind is None:
            good.append((name, len(name)))
        else:
            poison[name] = kind
    place.refresh()
    place.job(FUNCTION, timeout=2.0, retries=0)
    report = place.run()
    failures = {failure.path: failure for failure in place.session.jobs.failures("j")}
    assert {path: failures[path] for path in failures.keys() - poison.keys()} == {}
    assert failures.keys() == poison.keys()
    for path, kind in poison.items():
        _, expected, message = POISON[kind]
        assert (failures[path].kind, message in failures[path].message) == (expected, True), failures[path]
    assert place.table() == sorted(good)
    assert (report.progress.failed + report.progress.overtaken, report.progress.done_files) == (len(poison), FILES)
    assert report.paused is None
