"""Plug-ins that look installed: folders for Python's path with the metadata of a package."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

SAMPLE = Path(__file__).parents[1] / "examples" / "plugin"


def pretend_installed(folder: Path, package: str, points: Mapping[str, Mapping[str, str]]) -> None:
    """Writes metadata into a folder, as pip does, with the entry points of each group."""
    metadata = folder / f"{package.replace('-', '_')}-1.0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0.0\n")
    lines = [f"[{group}]\n" + "".join(f"{name} = {what}\n" for name, what in of.items()) for group, of in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))


def sample_path(folder: Path) -> str:
    """Makes the sample's metadata in a folder; the value of ``PYTHONPATH`` with which a process has it installed."""
    project = tomllib.loads((SAMPLE / "pyproject.toml").read_text())["project"]
    pretend_installed(folder, project["name"], project["entry-points"])
    return f"{folder}:{SAMPLE}:{SAMPLE.parents[1]}"
