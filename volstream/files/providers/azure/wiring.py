"""Whether a container's events reach a queue: only Azure's management can be asked, which volstream has no rights at."""

from __future__ import annotations

from volstream.base.model.work import Check, CheckState
from volstream.files.providers.access import Access
from volstream.files.providers.base import BucketPlace


def check_wiring(_access: Access, _place: BucketPlace, _queue: str) -> Check:
    """See :meth:`~volstream.files.providers.base.Provider.check_wiring`."""
    fix = "Look at the storage account's event subscriptions in the portal, or use --canary."
    return Check("wiring", CheckState.SKIPPED, "A storage account does not report its event subscriptions.", fix)
