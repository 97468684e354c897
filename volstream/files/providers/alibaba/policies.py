"""Alibaba Cloud's policies for volstream: trust policies of roles, least permissions for volumes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from volstream.files.providers.base import ACCOUNT, RequiredAccess, account_of, allowed, by_bucket, last_part, queues_of

_MNS_HOST = re.compile(r"(\d+)\.mns\.([a-z0-9-]+?)(?:-internal)?\.aliyuncs\.com")


def is_role(name: str, _endpoint: str | None) -> bool:
    """True if a role may have this ARN."""
    return re.fullmatch(r"acs:ram::\d+:role/[\w.-]+", name) is not None


def trust_policy(external_id: str, _role_arn: str | None) -> dict[str, Any]:
    """Returns the role's trust policy: volstream's account may assume it if it sends the external id."""
    statement = {
        "Effect": "Allow",
        "Action": "sts:AssumeRole",
        "Principal": {"RAM": [f"acs:ram::{ACCOUNT}:root"]},
        "Condition": {"StringEquals": {"sts:ExternalId": external_id}},
    }
    return {"Version": "1", "Statement": [statement]}


def permission_policy(needs: Sequence[RequiredAccess], region: str | None, role_arn: str | None) -> dict[str, Any]:
    """Returns the permissions of the role, or of the user without a role."""
    account = account_of(role_arn, 3)
    statements: list[dict[str, Any]] = []
    for bucket, roots, written in by_bucket(needs):
        resource = f"acs:oss:*:{account}:{bucket}"
        limited = {"StringLike": {"oss:Prefix": [f"{root}*" for root in roots]}} if all(roots) else None
        statements.append(allowed(["oss:ListObjects"], [resource], limited))
        statements.append(allowed(["oss:GetObject"], [f"{resource}/{root}*" for root in roots]))
        if written:
            places = [f"{resource}/{root}*" for root in written]
            statements.append(allowed(["oss:PutObject", "oss:DeleteObject", "oss:AbortMultipartUpload"], places))
            statements.append(allowed(["oss:ListMultipartUploads"], [resource]))
    queues = [_mns_name(queue, region or "*", account) for queue in queues_of(needs)]
    if queues:
        statements.append(allowed(["mns:GetQueueAttributes"], queues))
        actions = ["mns:ReceiveMessage", "mns:DeleteMessage", "mns:ChangeMessageVisibility"]
        statements.append(allowed(actions, [f"{queue}/messages" for queue in queues]))
    return {"Version": "1", "Statement": statements}


def _mns_name(queue: str, region: str, account: str) -> str:
    """Returns the resource of a queue given by name or URL:
    ``https://<account>.mns.<region>.aliyuncs.com/queues/<name>``."""
    match = _MNS_HOST.fullmatch(urlsplit(queue).hostname or "")
    if match is not None:
        account, region = match[1], match[2]
    return f"acs:mns:{region}:{account}:/queues/{last_part(queue)}"
