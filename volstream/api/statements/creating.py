"""CREATE TABLE leaves a table or nothing, although Delta writes the rows first and keeps them on failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from volstream.base.model.names import Name
from volstream.base.processes import new_owner
from volstream.catalog.leases import lease, of_creation
from volstream.errors import ObjectInUseError
from volstream.tables.delta import places
from volstream.tables.delta.places import is_folder, is_table

if TYPE_CHECKING:
    from volstream.home import Home


@contextmanager
def creating(home: Home, name: Name) -> Iterator[None]:
    """Removes the remains of an unfinished CREATE TABLE, including the block's if it raises. Does nothing if the table exists.

    Raises:
        ObjectInUseError: another process is creating the table.
    """
    location = places.own_location(home.warehouse, name)
    if places.table_location(home.warehouse, name) != location or is_table(location):
        yield
        return
    purpose = f"CREATE TABLE {name}"
    with lease(home.catalog.leases, of_creation(str(name)), new_owner(), purpose, home.settings.lease_seconds) as other:
        if other is not None:
            raise ObjectInUseError(f"The table {name} is being created by another session.", "Try again later.")
        if is_folder(f"{location}/_delta_log") and not is_table(location):
            places.remove(location)
        existed = is_folder(location)
        try:
            yield
        except BaseException:
            if not existed and not is_table(location):
                places.remove(location)
            raise
