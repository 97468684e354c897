"""Volumes: ``create-volume``, ``alter-volume``, ``refresh``."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from volstream.base.definitions import Volume, VolumeSpec
from volstream.base.definitions.options import to_alter, to_create
from volstream.base.model.paths import DEFAULT_IGNORES
from volstream.base.model.text import counted
from volstream.base.model.units import format_size
from volstream.base.threads import Stop, stop_on_signals
from volstream.cli.options import Made, common, creating_home, described, existing, names_of
from volstream.cli.output import Output
from volstream.errors import StorageError

if TYPE_CHECKING:
    from volstream.api.session import Session


@click.command("create-volume")
@click.argument("name")
@click.argument("location", type=click.Path())
@described(to_create(VolumeSpec, "location"))
@click.option("--check/--no-check", default=True, help="Check bucket and queue first.", show_default=True)
@existing
@creating_home
def create_volume_command(
    session: Session, output: Output, name: str, location: str, given: dict[str, Any], check: bool, **existing: Any
) -> None:
    """Make a directory, or a place in a bucket such as s3://bucket/prefix, a volume.

    Its files are kept as a table and can be streamed.
    """
    made = Made(session, "volume", name)
    volume = session.volumes.create(name, location, check=check, **existing, **given)
    text = f"Volume {volume.name} at {volume.location} (queue: {volume.queue_type})."
    text += _no_longer_ignored(given)
    text += _matching(session, volume) if volume.patterns and check else ""
    output.result(volume, made.said(volume, text, {**given, "location": location}))


def _no_longer_ignored(given: Mapping[str, Any]) -> str:
    """Says which files globs take in that are left out by default."""
    taken = [glob for glob in DEFAULT_IGNORES if glob not in given.get("ignores", DEFAULT_IGNORES)]
    return f" It takes files like {', '.join(taken)}, which are ignored by default." if taken else ""


def _matching(session: Session, volume: Volume) -> str:
    """Says how many files match a volume's patterns; that they cannot be listed does not undo the volume."""
    try:
        matching, files, complete = session.volumes.matching(str(volume.name))
    except StorageError as error:
        return f" Its files cannot be listed: {error}"
    if not files:
        return " It has no files yet."
    of = counted(files, "file") if complete else f"the first {files} files"
    if not matching:
        return f" None of {of} matches {' or '.join(map(repr, volume.patterns))}."
    said = counted(matching, "file") if complete else f"{matching} of {of}"
    return f" {said} match{'es' if matching == 1 else ''}."


@click.command("alter-volume")
@click.argument("name", shell_complete=names_of("volume"))
@described(to_alter(VolumeSpec), changes=True)
@click.option("--all-files", is_flag=True, help="Drop the patterns.")
@click.option("--check/--no-check", default=True, help="Check bucket and queue first.", show_default=True)
@common
def alter_volume_command(
    session: Session, output: Output, name: str, given: dict[str, Any], all_files: bool, check: bool
) -> None:
    """Change a volume. Its directory, streams and jobs stay. New patterns, or globs to ignore, replace all earlier ones.

    Files that new patterns exclude are removed by the next full listing, with their rows. Files they include are new.
    """
    if "patterns" in given and all_files:
        raise click.UsageError("--pattern and --all-files are mutually exclusive.")
    if all_files:
        given["patterns"] = ()
    volume = session.volumes.alter(name, check=check, **given)
    text = f"Volume {volume.name} changed.{_no_longer_ignored(given)}"
    output.result(volume, f"{text} To apply it now: volstream refresh {volume.name}.")


@click.command("refresh")
@click.argument("volume", shell_complete=names_of("volume"))
@click.option("--subdirectory", default="", metavar="PATH", help="List only what is below PATH.")
@click.option("--accept-removals", is_flag=True, help="Apply removals beyond the volume's limit.")
@click.option(
    "--inventory",
    metavar="URI",
    help="Read this inventory report of the bucket instead of listing it: its manifest.json, or the folder of the inventory "
    "for the newest one.",
)
@common
def refresh_command(
    session: Session, output: Output, volume: str, subdirectory: str, accept_removals: bool, inventory: str | None
) -> None:
    """List VOLUME now and update its directory table."""
    _leave_pandas_out()
    stop = Stop()
    with stop_on_signals(stop, first=lambda: output.message("Stopping. Interrupt again to end at once.")):
        done = session.volumes.refresh(volume, subdirectory, accept_removals=accept_removals, inventory=inventory, stop=stop)
    listing = done.listing
    value: dict[str, Any] = {
        "volume": volume,
        "inserted": done.inserted,
        "updated": done.updated,
        "deleted": done.deleted,
        "by_daemon": listing is None,
        "held_removals": done.held,
    }
    text = f"{done.inserted} new, {done.updated} changed, {done.deleted} removed"
    if listing is not None:
        value |= {
            "files": listing.files,
            "bytes": listing.bytes,
            "findings": listing.findings,
            "unsettled": list(listing.unsettled),
            "seconds": round(listing.seconds, 3),
            "as_of": listing.as_of,
        }
        text = f"{counted(listing.files, 'file')} ({format_size(listing.bytes)}): {text}."
        if listing.unsettled:
            text += f" {len(listing.unsettled)} still being written: refresh again later."
        if unusable := listing.findings - len(listing.unsettled):
            text += f" {counted(unusable, 'name')} cannot be used; see volstream list rejected."
        if listing.as_of is not None:
            text += f" Complete as of {listing.as_of:%Y-%m-%d %H:%M:%S} UTC; events bring what has changed since."
    if done.held:
        text += (
            f"{'' if text.endswith('.') else '.'} {counted(done.held, 'removal')} held, because there are more than the volume's "
            f"limit. If the files were deleted, run: volstream refresh {volume} --accept-removals."
        )
    output.result(value, text)


def _leave_pandas_out() -> None:
    """Makes PyArrow treat pandas as not installed in this process: it would import it, which takes half a second, to make
    any array from a list.

    PyArrow looks for it once, and has no setting for that.
    """
    import pyarrow as pa

    if "pandas" not in sys.modules:
        absent = _WithoutPandas()
        sys.meta_path.insert(0, absent)
        pa.array([0])
        sys.meta_path.remove(absent)


class _WithoutPandas(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        del path, target
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)
