"""The description of a backup. It is written last, so that a folder without it is not a backup."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from volstream.errors import InvalidValueError
from volstream.tables.delta.places import replace_file

_FILE = "backup.json"


@dataclass(frozen=True)
class Manifest:
    """One backup.

    Attributes:
        created_on: time of the state in the backup.
        volstream: version that created it.
        home, warehouse: original locations; plans and open attempts refer to places in the warehouse.
        tables: Delta version of each table, by its path in the warehouse.
        rows: number of catalog rows, by table.
        linked: tables outside the warehouse, which are not in the backup.
    """

    created_on: datetime
    volstream: str
    home: str
    warehouse: str
    tables: dict[str, int]
    rows: dict[str, int]
    linked: list[str]

    def write(self, folder: Path) -> None:
        """Turns ``folder`` into a backup, after everything else in it has reached the disk."""
        os.sync()
        value = asdict(self) | {"created_on": self.created_on.isoformat()}
        replace_file(str(folder / _FILE), json.dumps(value, indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads the manifest of the backup in ``folder``. Raises InvalidValueError if it is missing or unfinished."""
        try:
            value: dict[str, Any] = json.loads((folder / _FILE).read_bytes())
            return cls(**value | {"created_on": datetime.fromisoformat(value["created_on"])})
        except FileNotFoundError:
            raise InvalidValueError(
                f"{folder} is not a finished backup: it has no {_FILE}.", "Name a folder created by volstream backup."
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidValueError(f"{folder / _FILE} cannot be read: {error}.") from None
