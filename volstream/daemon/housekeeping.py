"""Removes what crashes left in the warehouse: staged outcomes and plans that nothing refers to."""

from __future__ import annotations

from volstream.catalog import Catalog
from volstream.delta import folders
from volstream.log import get

_log = get("housekeeping")


def clean(catalog: Catalog, warehouse: str) -> None:
    """To be called by the owner of the home's engine, before it lets anybody work: nothing is being made then.

    Plans of open consumptions stay; staged outcomes of attempts never outlive their attempt.
    """
    kept = set(catalog.consumptions.open_plans())
    gone = [f"{warehouse}/_plans/{name}" for name in folders.inside(f"{warehouse}/_plans") if name not in kept]
    gone += [f"{warehouse}/_staging/{name}" for name in folders.inside(f"{warehouse}/_staging")]
    for location in gone:
        folders.remove(location)
    if gone:
        _log.info("leftovers_removed", folders=len(gone))
