"""``engine.json``: the engine's description of itself, readable by its owner only. It does not prove that the engine is alive."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from volstream.base.config import Settings
from volstream.base.privacy import write_private
from volstream.spark.jvm.address import EngineAddress


def path_of(settings: Settings) -> Path:
    """Returns the path of a home's record."""
    return settings.run_directory / "engine.json"


def read(settings: Settings) -> EngineAddress | None:
    """Returns the record; None if there is none, or another release wrote it."""
    try:
        return EngineAddress(**json.loads(path_of(settings).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def write(settings: Settings, address: EngineAddress) -> None:
    """Replaces the record atomically; readable by its owner only."""
    write_private(path_of(settings), json.dumps(asdict(address)))


def remove(settings: Settings) -> None:
    """Removes the record. Idempotent."""
    path_of(settings).unlink(missing_ok=True)
