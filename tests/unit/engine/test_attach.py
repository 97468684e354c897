from __future__ import annotations

from pathlib import Path

import pytest

from volstream import config
from volstream.engine.attach import remote_address, start
from volstream.engine.lock import HomeLock, Owner
from volstream.errors import InvalidValueError


@pytest.mark.parametrize(
    ("remote", "warehouse", "refused"),
    [
        ("sc://spark.example:15002", "", "folder of this host"),
        ("sc://spark.example:15002", "/mnt/shared/warehouse", None),
        ("sc://localhost:15002/;token=t", "", None),
        ("spark://host:7077", "/mnt/w", "cannot be 'spark://host:7077'"),
    ],
)
def test_a_spark_elsewhere_needs_a_warehouse_that_it_reaches(
    tmp_path: Path, remote: str, warehouse: str, refused: str | None
) -> None:
    settings = config.load(tmp_path, spark_remote=remote, warehouse=warehouse)
    if refused is None:
        assert remote_address(settings).url == remote
    else:
        with pytest.raises(InvalidValueError, match=refused):
            remote_address(settings)


def test_a_file_of_the_current_folder_is_not_taken_for_a_module_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "psutil.py").write_text("raise SystemExit('taken')")
    monkeypatch.chdir(tmp_path)
    settings = config.load(tmp_path / "home")
    lock = HomeLock(settings)
    lock.try_acquire(Owner.me("daemon"))  # so that the engine has nothing to do, once it is imported
    try:
        child = start(settings, tmp_path / "log" / "engine.log")
        assert child.wait(60) == 0
    finally:
        lock.release()
