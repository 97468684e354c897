"""Events of open pages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from volstream.catalog import Catalog
from volstream.catalog.database import Database
from volstream.server.console.live import LiveEvents


def test_pages_are_told_of_changes_although_a_look_failed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"
    Catalog(url).close()
    looks = 0

    def probed() -> Mapping[str, Any]:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise RuntimeError("a fault of the daemon's")
        return {"looks": looks}

    async def told() -> str:
        live = LiveEvents(Database(url), probed)
        try:
            async with asyncio.timeout(10):
                async for text in live.events():
                    if text.startswith("event:"):
                        return text
            raise AssertionError("events have no end")
        finally:
            live.stop()

    assert asyncio.run(told()).startswith("event: change")
