"""Removes what crashes left in the warehouse: staged outcomes and plans that nothing refers to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from volstream.catalog import Catalog
from volstream.delta import folders
from volstream.log import get

_log = get("housekeeping")

#: What nobody has written to for so long is of nobody who still works on it. A batch takes minutes.
_LEFT = timedelta(days=1)


def clean(catalog: Catalog, warehouse: str, *, alone: bool) -> None:
    """To be called by a daemon before it works.

    Plans of open consumptions stay; staged outcomes of attempts never outlive their attempt.

    Args:
        alone: nobody else can be at work in the warehouse. Otherwise what was written to within a day stays: a plan that is
            being made is in no catalog yet, and another host's batch may be staged right now.
    """
    kept = set(catalog.consumptions.open_plans())
    found = [f"{warehouse}/_plans/{name}" for name in folders.inside(f"{warehouse}/_plans") if name not in kept]
    found += [f"{warehouse}/_staging/{name}" for name in folders.inside(f"{warehouse}/_staging")]
    now = datetime.now(UTC)
    gone = [location for location in found if alone or now - folders.last_written(location) > _LEFT]
    for location in gone:
        folders.remove(location)
    if gone:
        _log.info("leftovers_removed", folders=len(gone))
