"""Azure's role assignments for volstream: least roles for volumes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from volstream.files.providers.base import RequiredAccess, by_bucket, last_part, queues_of

_ACCOUNT = "/subscriptions/SUBSCRIPTION_ID/resourceGroups/GROUP/providers/Microsoft.Storage/storageAccounts/"

_READ = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read"


def is_role(name: str, _endpoint: str | None) -> bool:
    """True if this is the client id of a managed identity."""
    return re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", name) is not None


def trust_policy(_external_id: str, _role: str | None) -> dict[str, Any]:
    """Returns the identity's federated credential, which lets a Kubernetes pod use it. Machines need none."""
    return {
        "issuer": "OIDC_ISSUER_URL",
        "subject": "system:serviceaccount:NAMESPACE:SERVICE_ACCOUNT",
        "audiences": ["api://AzureADTokenExchange"],
    }


def permission_policy(needs: Sequence[RequiredAccess], _region: str | None, role: str | None) -> dict[str, Any]:
    """Returns the identity's role assignments: role, scope, and a condition for a prefix of a container."""
    account, principal = f"{_ACCOUNT}ACCOUNT", role or "PRINCIPAL_ID"
    assignments = [_assigned("Storage Blob Delegator", account, principal)]
    for container, roots, written in by_bucket(needs):
        scope = f"{account}/blobServices/default/containers/{container}"
        assignments.append(_assigned("Storage Blob Data Reader", scope, principal, _below(roots)))
        if written:
            assignments.append(_assigned("Storage Blob Data Contributor", scope, principal))
    for queue in queues_of(needs):
        name, service, _ = (urlsplit(queue).hostname or "").partition(".queue.")
        scope = f"{_ACCOUNT}{name if service else 'ACCOUNT'}/queueServices/default/queues/{last_part(queue)}"
        # a lesser role cannot extend messages
        assignments.append(_assigned("Storage Queue Data Contributor", scope, principal))
    return {"roleAssignments": assignments}


def _assigned(role: str, scope: str, principal: str, condition: str | None = None) -> dict[str, Any]:
    assignment = {"role": role, "scope": scope, "assignee": principal}
    return assignment if condition is None else {**assignment, "condition": condition, "conditionVersion": "2.0"}


def _below(roots: Sequence[str]) -> str | None:
    """Returns the condition that reads and listings are below a prefix, or None if they may be anywhere."""
    if not all(roots):
        return None
    path = "@Resource[Microsoft.Storage/storageAccounts/blobServices/containers/blobs:path]"
    prefix = "@Request[Microsoft.Storage/storageAccounts/blobServices/containers/blobs:prefix]"
    read = " OR ".join(f"{path} StringStartsWith '{_quoted(root)}'" for root in roots)
    listed = " OR ".join(f"{prefix} StringStartsWith '{_quoted(root)}'" for root in roots)
    return (
        f"((!(ActionMatches{{'{_READ}'}} AND NOT SubOperationMatches{{'Blob.List'}})) OR ({read})) AND "
        f"((!(ActionMatches{{'{_READ}'}} AND SubOperationMatches{{'Blob.List'}})) OR ({listed}))"
    )


def _quoted(text: str) -> str:
    return text.replace("'", "''")
