"""Checks whether a bucket's notifications reach a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volstream.base.model.work import Check, CheckState
from volstream.errors import DependencyError
from volstream.files.providers.access import Access
from volstream.files.providers.aws.credentials import client, errors
from volstream.files.providers.base import BucketPlace


def check_wiring(access: Access, place: BucketPlace, queue: str) -> Check:
    """See :meth:`~volstream.files.providers.base.Provider.check_wiring`."""
    try:
        with errors("The notifications of the bucket"):
            configuration = client(access, "s3").get_bucket_notification_configuration(Bucket=place.bucket)
    except DependencyError as error:
        fix = "Allow s3:GetBucketNotification to have this checked, or use --canary."
        return Check("wiring", CheckState.SKIPPED, error.message, fix)
    return notification_check(configuration, queue, place.root)


def notification_check(configuration: Mapping[str, Any], queue: str, root: str) -> Check:
    """Checks that a bucket's notifications for everything below ``root`` reach a queue. Pure.

    Args:
        configuration: the notification configuration, as reported by S3.
        queue: name or URL.
    """
    if "EventBridgeConfiguration" in configuration:
        return Check("wiring", CheckState.OK, "The bucket notifies EventBridge, whose rules are not checked.")
    name = queue.rpartition("/")[2]
    matching = [
        notification
        for notification in configuration.get("QueueConfigurations", ())
        if notification["QueueArn"].rpartition(":")[2] == name
    ]
    if not matching:
        if configuration.get("TopicConfigurations"):
            message = "The bucket notifies SNS topics, whose subscriptions are not checked."
            return Check("wiring", CheckState.OK, message)
        fix = "Add a notification of s3:ObjectCreated:* and s3:ObjectRemoved:* to it, as deploy/aws does."
        return Check("wiring", CheckState.FAILED, f"The bucket does not notify the queue {name}.", fix)
    covering = [notification for notification in matching if _covers(notification.get("Filter", {}), root)]
    if not covering:
        fix = "Remove the notification's filter, or set its prefix to one that covers the volume."
        return Check("wiring", CheckState.FAILED, "The notification is for other prefixes or suffixes.", fix)
    events = {event for notification in covering for event in notification["Events"]}
    missing = [kind for kind in ("ObjectCreated", "ObjectRemoved") if f"s3:{kind}:*" not in events]
    if missing:
        listed = ", ".join(f"s3:{kind}:*" for kind in missing)
        return Check("wiring", CheckState.WARNING, f"The notification lacks {listed}.", f"Add {listed}.")
    return Check("wiring", CheckState.OK, f"The bucket notifies the queue {name}.")


def _covers(filter_: Mapping[str, Any], root: str) -> bool:
    """True if a notification's filter accepts all keys below ``root``."""
    rules = {rule["Name"].lower(): rule["Value"] for rule in filter_.get("Key", {}).get("FilterRules", ())}
    return root.startswith(rules.get("prefix", "")) and not rules.get("suffix")
