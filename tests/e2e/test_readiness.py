"""A volume that stands still is neither ready nor silent, whatever its queue is, until it moves again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.homes import Home, patiently


@pytest.mark.long
@pytest.mark.parametrize("queue", ["local", "none"])
def test_a_volume_whose_folder_is_gone_is_reported_until_it_is_back(tmp_path: Path, queue: str) -> None:
    home = Home(tmp_path)
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    home.ok("create-volume", "v", str(folder), "--queue-type", queue)
    with home.daemon() as daemon:
        patiently(lambda: daemon.metric("volstream_directory_lag_seconds", volume="v") is not None)
        folder.rename(tmp_path / "elsewhere")
        patiently(lambda: daemon.get("/readyz")[0] == 503, timeout=30)
        said = json.loads(daemon.get("/readyz")[1])
        assert said["status"] == "not ready"
        assert str(folder) in said["failing_volumes"]["v"]
        patiently(lambda: str(folder) in (home.json("status")["volumes"][0]["note"] or ""), timeout=30)
        assert home.json("status")["volumes"][0]["files"] == 1, "nothing was deleted"
        (tmp_path / "elsewhere").rename(folder)
        patiently(lambda: daemon.get("/readyz")[0] == 200, timeout=60)
        patiently(lambda: home.json("status")["volumes"][0]["note"] is None, timeout=30)
