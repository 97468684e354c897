"""``volstream verify`` as it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import QueueType
from volstream.cli.main import run


def test_each_report_is_printed_before_the_next_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    with Session(config.load(home)) as session:
        kind = type(session.volumes)
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            session.volumes.create(name, str(tmp_path / name), queue_type=QueueType.NONE)
            session.volumes.refresh(name)
    before: list[str] = []
    verify = kind.verify

    def verifying(self: Any, volume: str, **options: Any) -> Any:
        before.append(capsys.readouterr().out)
        return verify(self, volume, **options)

    monkeypatch.setattr(kind, "verify", verifying)
    assert run(["verify", "--all", "--home", str(home)]) == 0
    assert [text.split(":")[0] for text in (*before, capsys.readouterr().out)] == ["", "volume a", "volume b"]
