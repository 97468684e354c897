"""Whether a bucket's notifications reach a queue: OSS has no API that says so."""

from __future__ import annotations

from volstream.base.model.work import Check, CheckState
from volstream.files.providers.access import Access
from volstream.files.providers.base import BucketPlace


def check_wiring(_access: Access, _place: BucketPlace, _queue: str) -> Check:
    """See :meth:`~volstream.files.providers.base.Provider.check_wiring`."""
    fix = "Look at the bucket's event notifications in the console, or use --canary."
    return Check("wiring", CheckState.SKIPPED, "OSS does not report its event rules.", fix)
