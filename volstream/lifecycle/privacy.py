"""What this machine's other users may read of a home: nothing."""

from __future__ import annotations

import os
from pathlib import Path

from volstream.config import Settings


def make_directory(path: Path) -> None:
    """Makes a folder, and those above it that are missing, for the user alone. One that is there stays as it is."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def keep_private(settings: Settings) -> None:
    """Lets this process, which must be one of volstream's own, make files that nobody else can read.

    Not where the warehouse is a folder outside of the home, which was chosen so that others find the tables: there the
    umask with which the process was started decides, and the folder of the home keeps the rest private.
    """
    shared = "://" not in settings.warehouse_path and settings.home not in Path(settings.warehouse_path).parents
    if not shared:
        os.umask(0o077)
