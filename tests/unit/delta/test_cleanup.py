"""Which entries of a log go. The logs here are names; what Delta makes of a shorter one is in tests/integration."""

from __future__ import annotations

from pathlib import Path

import pytest

from volstream.delta import cleanup

_OTHER = ("_last_checkpoint", "_staged_commits", ".00000000000000000003.json.0f.tmp", "00000000000000000001.json.bak")


class _InterruptionError(Exception):
    pass


def make_log(table: Path, last: int, *, every: int = 10) -> Path:
    log = table / "_delta_log"
    log.mkdir(parents=True)
    names = [*_OTHER]
    for version in range(last + 1):
        kinds = ["json", "crc", *(["checkpoint.parquet"] if version and version % every == 0 else [])]
        names += [
            f"{prefix}{version:020d}.{kind}{suffix}" for kind in kinds for prefix, suffix in (("", ""), (".", ".crc"))
        ]
    for name in names:
        (log / name).touch()
    return log


def versions(log: Path) -> set[int]:
    return {int(path.name[:20]) for path in log.iterdir() if path.name not in _OTHER and path.name[0] != "."}


@pytest.mark.parametrize(
    ("keep", "first"), [(-5, 0), (0, 0), (9, 0), (10, 10), (19, 10), (20, 20), (34, 30), (35, 30), (99, 30)]
)
def test_the_log_begins_at_the_newest_checkpoint_that_is_old_enough(tmp_path: Path, keep: int, first: int) -> None:
    log = make_log(tmp_path, 35)
    assert cleanup.earliest(str(tmp_path)) == 0
    assert cleanup.clean(str(tmp_path), keep) == first
    assert cleanup.earliest(str(tmp_path)) == first
    assert versions(log) == {*range(first, 36)}
    hidden = {int(path.name[1:21]) for path in log.glob(".0*.crc") if path.name not in _OTHER}
    assert hidden == {*range(first, 36)}
    assert {path.name for path in log.iterdir()} >= {*_OTHER}
    assert cleanup.clean(str(tmp_path), keep) == 0


def test_no_table_has_no_earliest_version(tmp_path: Path) -> None:
    assert cleanup.earliest(str(tmp_path)) is None
    assert cleanup.clean(str(tmp_path), 5) == 0


def test_an_interruption_leaves_a_log_whose_first_version_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cleanup._log_of

    class Filesystem:
        def __init__(self, location: str, left: int) -> None:
            (self.real, self.path), self.left = real(location), left

        def get_file_info(self, selector: object) -> object:
            return self.real.get_file_info(selector)

        def delete_file(self, path: str) -> None:
            if not self.left:
                raise _InterruptionError
            self.left -= 1
            self.real.delete_file(path)

    for left in range(0, 82, 3):
        table = tmp_path / str(left)
        log = make_log(table, 25)
        interrupted = Filesystem(str(table), left)
        monkeypatch.setattr(cleanup, "_log_of", lambda _, found=interrupted: (found, found.path))
        with pytest.raises(_InterruptionError):
            cleanup.clean(str(table), 25)
        monkeypatch.setattr(cleanup, "_log_of", real)
        first = cleanup.earliest(str(table))
        assert first is not None
        for version in range(first, 26):
            assert (log / f"{version:020d}.json").exists()
        assert first == 0 or (log / f"{first:020d}.checkpoint.parquet").exists()
        cleanup.clean(str(table), 25)
        assert versions(log) == {*range(20, 26)}
