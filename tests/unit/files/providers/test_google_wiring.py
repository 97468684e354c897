"""Whether a bucket of Google's reports all changes of a volume to its subscription's topic."""

from __future__ import annotations

import pytest

from volstream.base.model.work import CheckState
from volstream.files.providers.google.wiring import Notification, notification_check

TOPIC = "projects/p/topics/t"
ALL = ["OBJECT_FINALIZE", "OBJECT_DELETE", "OBJECT_ARCHIVE", "OBJECT_METADATA_UPDATE"]


@pytest.mark.parametrize(
    ("found", "state", "said"),
    [
        ([], CheckState.FAILED, "does not notify projects/p/topics/t"),
        ([Notification("projects/p/topics/other", None, None)], CheckState.FAILED, "does not notify"),
        ([Notification(TOPIC, None, "other/")], CheckState.FAILED, "other prefixes"),
        ([Notification(TOPIC, ["OBJECT_FINALIZE"], None)], CheckState.WARNING, "lacks OBJECT_DELETE, OBJECT_ARCHIVE"),
        ([Notification(TOPIC, None, "in/")], CheckState.OK, "notifies projects/p/topics/t"),
        ([Notification(TOPIC, ALL[:1], None), Notification(TOPIC, ALL[1:], "in/")], CheckState.OK, "notifies"),
        ([Notification(TOPIC, None, None), Notification(TOPIC, ALL[:1], None)], CheckState.OK, "notifies"),
    ],
)
def test_the_notifications_of_a_bucket_are_judged(found: list[Notification], state: CheckState, said: str) -> None:
    check = notification_check(found, TOPIC, "in/a/")
    assert (check.state, said in check.said) == (state, True)
