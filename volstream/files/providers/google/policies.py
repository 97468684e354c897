"""Google's IAM policies for volstream: use of service accounts, and least roles for volumes. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from volstream.files.providers.base import ACCOUNT, RequiredAccess, by_bucket, last_part, queues_of


def is_role(name: str, _endpoint: str | None) -> bool:
    """True if a service account may have this name."""
    return re.fullmatch(r"[a-z0-9-]+@[a-z0-9.-]+\.gserviceaccount\.com", name) is not None


def trust_policy(_external_id: str, role: str | None) -> dict[str, Any]:
    """Returns who may act as the service account: volstream's own account. Google has no external ids."""
    return {"bindings": [_granted(role or ACCOUNT, "roles/iam.serviceAccountTokenCreator", None)]}


def permission_policy(needs: Sequence[RequiredAccess], _region: str | None, role: str | None) -> dict[str, Any]:
    """Returns the service account's roles, each with the resource that grants it."""
    bindings: list[dict[str, Any]] = []
    for bucket, roots, written in by_bucket(needs):
        bindings.append(_granted(f"gs://{bucket}", "roles/storage.legacyBucketReader", role))
        bindings.append(_granted(f"gs://{bucket}", "roles/storage.legacyObjectReader", role, _below(bucket, roots)))
        if written:
            bindings.append(_granted(f"gs://{bucket}", "roles/storage.objectUser", role, _below(bucket, written)))
    for queue in queues_of(needs):
        # To read and acknowledge messages, and to describe the subscription.
        bindings += [_granted(_name(queue, role), f"roles/pubsub.{name}", role) for name in ("subscriber", "viewer")]
    return {"bindings": bindings}


def _granted(resource: str, role: str, member: str | None, condition: str | None = None) -> dict[str, Any]:
    binding: dict[str, Any] = {"resource": resource, "role": role, "members": [f"serviceAccount:{member or ACCOUNT}"]}
    return binding if condition is None else {**binding, "condition": {"title": "volstream", "expression": condition}}


def _below(bucket: str, roots: Sequence[str]) -> str | None:
    """Returns the condition that an object is below a prefix, or None if it may be anywhere."""
    if not all(roots):
        return None
    names = (json.dumps(f"projects/_/buckets/{bucket}/objects/{root}", ensure_ascii=False) for root in roots)
    return " || ".join(f"resource.name.startsWith({name})" for name in names)


def _name(queue: str, role: str | None) -> str:
    if "/" in queue:
        return queue[queue.index("projects/") :]
    project = (role or "").partition("@")[2].partition(".")[0] or "PROJECT"
    return f"projects/{project}/subscriptions/{last_part(queue)}"
