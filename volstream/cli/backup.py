"""``backup`` and ``restore``: copies a home's state while it is in use, and creates a home from the copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from volstream.base.definitions import FileJob
from volstream.base.model.text import counted
from volstream.cli.options import common, creating_home, interactive
from volstream.cli.output import Output

if TYPE_CHECKING:
    from volstream.api.session import Session
    from volstream.ops.backup import Manifest

_FOLDER = click.Path(path_type=Path, resolve_path=True)


@click.command("backup")
@click.argument("directory", type=_FOLDER)
@common
def backup_command(session: Session, output: Output, directory: Path) -> None:
    """Copy the home to a new DIRECTORY, as of one moment, while daemon and jobs keep working.

    The copy has catalog, tables and settings, but not the files of volumes or the code of functions.
    """
    from volstream.ops.backup import make_backup

    manifest = make_backup(session.home.catalog, session.home.settings, directory, _progress(output))
    _show(output, manifest, f"Backed up to {directory}: {_what(manifest)}.")


@click.command("restore")
@click.argument("directory", type=_FOLDER)
@creating_home
def restore_command(session: Session, output: Output, directory: Path) -> None:
    """Create a new home from the backup in DIRECTORY."""
    from volstream.ops.backup import restore_backup

    manifest = restore_backup(session.home.catalog, session.home.settings, directory, _progress(output))
    text = f"Restored {session.home.settings.home}, as of {manifest.created_on:%F %T} UTC: {_what(manifest)}."
    text += "\nNext: volstream daemon, or volstream refresh VOLUME. A listing finds what has changed since."
    if str(session.home.settings.home) != manifest.home and (directory / "volstream.toml").exists():
        text += f"\nSettings are not restored; those of {manifest.home} are in {directory / 'volstream.toml'}."
    for job in session.jobs.list():
        if isinstance(job, FileJob) and job.outputs_to:
            text += f"\nThe job {job.name} writes its files to the volume {job.outputs_to}, as the home that was backed up does: "
            text += "pause one of them. It replaces no file that was written since the backup: delete these."
        if isinstance(job, FileJob) and job.takes_files:
            text += f"\nThe job {job.name} takes files away once they are loaded. Those taken since the backup have no rows: "
            text += "move them back into its volume."
    _show(output, manifest, text)


def _progress(output: Output) -> Callable[[str], object]:
    """Returns a function that reports the progress of copying on a terminal."""
    return lambda what: None if output.as_json or not interactive() else output.message(f"Copying {what} ...")


def _what(manifest: Manifest) -> str:
    rows = manifest.rows
    parts = [counted(rows[f"{kind}s"], kind) for kind in ("volume", "stream", "job")]
    return ", ".join([*parts, counted(len(manifest.tables), "table")])


def _show(output: Output, manifest: Manifest, text: str) -> None:
    if manifest.linked:
        text += f"\nNot copied, because they lie outside the warehouse: {', '.join(manifest.linked)}."
    output.result(dataclasses.asdict(manifest), text)
