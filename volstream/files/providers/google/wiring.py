"""Checks whether a bucket's notifications reach a subscription."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from volstream.base.model.work import Check, CheckState
from volstream.errors import DependencyError
from volstream.files.providers.access import Access
from volstream.files.providers.base import BucketPlace
from volstream.files.providers.google import credentials
from volstream.files.providers.google.queue import PubSubService
from volstream.files.providers.google.store import client
from volstream.files.queues.base import QueueSpec

#: The events for all files that appear or disappear.
_NEEDED = ("OBJECT_FINALIZE", "OBJECT_DELETE", "OBJECT_ARCHIVE")


class Notification(NamedTuple):
    """A notification of a bucket. ``events`` and ``prefix`` are None for all events and all objects."""

    topic: str
    events: Sequence[str] | None
    prefix: str | None


def check_wiring(access: Access, place: BucketPlace, queue: str) -> Check:
    """See :meth:`~volstream.files.providers.base.Provider.check_wiring`."""
    try:
        with credentials.errors("The notifications of the bucket"):
            topic = PubSubService(QueueSpec("", name=queue, access=access)).state().topic
            found = [_read(item) for item in client(access).bucket(place.bucket).list_notifications(timeout=30.0)]
    except DependencyError as error:
        fix = "Allow storage.buckets.get and pubsub.subscriptions.get to have this checked, or use --canary."
        return Check("wiring", CheckState.SKIPPED, error.message, fix)
    return notification_check(found, topic, place.root)


def notification_check(found: Sequence[Notification], topic: str, root: str) -> Check:
    """Checks that a bucket's notifications for everything below ``root`` reach a topic. Pure."""
    matching = [item for item in found if item.topic == topic]
    if not matching:
        message = f"The bucket does not notify {topic}, the subscription's topic."
        fix = "Add a notification: gcloud storage buckets notifications create gs://BUCKET --topic=TOPIC."
        return Check("wiring", CheckState.FAILED, message, fix)
    covering = [item for item in matching if root.startswith(item.prefix or "")]
    if not covering:
        fix = "Set the notification's prefix to one that covers the volume."
        return Check("wiring", CheckState.FAILED, "The notification is for other prefixes.", fix)
    if any(not item.events for item in covering):
        return Check("wiring", CheckState.OK, f"The bucket notifies {topic}.")
    missing = [kind for kind in _NEEDED if not any(kind in (item.events or ()) for item in covering)]
    if missing:
        listed = ", ".join(missing)
        return Check("wiring", CheckState.WARNING, f"The notification lacks {listed}.", f"Add {listed}.")
    return Check("wiring", CheckState.OK, f"The bucket notifies {topic}.")


def _read(notification: Any) -> Notification:
    topic = f"projects/{notification.topic_project}/topics/{notification.topic_name}"
    return Notification(topic, notification.event_types, notification.blob_name_prefix)
