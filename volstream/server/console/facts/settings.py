"""How the home is set up, and whether that works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from volstream.base.model.work import Check
from volstream.ops.inspection.doctor import ShownSetting, shown_settings
from volstream.server.console.facts import PageRequest


@dataclass(frozen=True)
class SettingsFacts:
    """All settings."""

    settings: Sequence[ShownSetting]


@dataclass(frozen=True)
class DoctorFacts:
    """The volumes that can be checked, and the one that was. ``checks``: None: nothing was checked."""

    volumes: Sequence[str]
    volume: str | None
    checks: Sequence[Check] | None = None


def settings(asked: PageRequest) -> SettingsFacts:
    """The settings of the home, without secrets."""
    return SettingsFacts(shown_settings(asked.home.settings, asked.home.catalog.database.describe()))


def doctor(asked: PageRequest) -> DoctorFacts:
    """The volumes that can be checked. POST checks the home, and one of them."""
    volumes = [str(volume.name) for volume in asked.home.catalog.volumes.list()]
    return DoctorFacts(volumes, asked.query.text("volume"))
