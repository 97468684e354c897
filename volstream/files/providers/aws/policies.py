"""Amazon's policies for volstream: trust policies of roles, and least permissions for volumes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from volstream.files.providers.base import ACCOUNT, RequiredAccess, account_of, allowed, by_bucket, last_part, queues_of

#: Region prefixes of other partitions.
_PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}

_VERSION = "2012-10-17"


_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+")


def is_role(name: str, endpoint: str | None) -> bool:
    """True if a role may have this ARN. Compatible stores have their own formats."""
    return bool(_ROLE.fullmatch(name) or (endpoint is not None and re.fullmatch(r"arn:\S+", name)))


def trust_policy(external_id: str, role_arn: str | None) -> dict[str, Any]:
    """Returns the role's trust policy: volstream's account may assume it if it sends the external id."""
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": f"arn:{_partition(role_arn, None)}:iam::{ACCOUNT}:root"},
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"sts:ExternalId": external_id}},
    }
    return {"Version": _VERSION, "Statement": [statement]}


def permission_policy(needs: Sequence[RequiredAccess], region: str | None, role_arn: str | None) -> dict[str, Any]:
    """Returns the permissions of the role, or of the user without a role."""
    partition = _partition(role_arn, region)
    statements: list[dict[str, Any]] = []
    encrypted: dict[str, list[str]] = {"s3": [], "sqs": []}
    for bucket, roots, written in by_bucket(needs):
        resource = f"arn:{partition}:s3:::{bucket}"
        limited = {"StringLike": {"s3:prefix": [f"{_literal(root)}*" for root in roots]}} if all(roots) else None
        read = [f"{resource}/{_literal(root)}*" for root in roots]
        statements.append(allowed(["s3:ListBucket"], [resource], limited))
        statements.append(allowed(["s3:GetObject", "s3:GetObjectVersion"], read))
        if written:
            places = [f"{resource}/{_literal(root)}*" for root in written]
            statements.append(allowed(["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"], places))
            # To find parts left by killed workers. AWS cannot limit this to a prefix.
            statements.append(allowed(["s3:ListBucketMultipartUploads"], [resource]))
        # With a bucket key, the encryption context has the bucket's ARN for all objects.
        encrypted["s3"] += [resource, *read]
    queues = encrypted["sqs"] = [_sqs_arn(queue, partition, region or "*", account_of(role_arn, 4)) for queue in queues_of(needs)]
    if queues:
        actions = ("ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes", "GetQueueUrl")
        statements.append(allowed([f"sqs:{action}" for action in actions], queues))
    # The KMS keys are not known here. Instead, conditions name the encrypted resources, which a service
    # states with each use.
    statements += [
        allowed(["kms:Decrypt"], ["*"], {"StringLike": {f"kms:EncryptionContext:aws:{service}:arn": arns}})
        for service, arns in encrypted.items()
        if arns
    ]
    return {"Version": _VERSION, "Statement": statements}


def _sqs_arn(queue: str, partition: str, region: str, account: str) -> str:
    """Returns the ARN of a queue given by name, or by URL:
    ``https://sqs.<region>.amazonaws.com/<account>/<name>``."""
    place = urlsplit(queue)
    parts = place.path.strip("/").split("/")
    if place.scheme and len(parts) == 2:
        host = (place.hostname or "").split(".")
        region = host[1] if host[0] == "sqs" and len(host) > 2 else region
        account = parts[0]
    return f"arn:{partition}:sqs:{region}:{account}:{last_part(queue)}"


def _partition(role_arn: str | None, region: str | None) -> str:
    """Returns the partition, such as ``aws`` or ``aws-cn``, from the role's ARN or else from the region."""
    if role_arn:
        return role_arn.split(":")[1]
    return next((name for prefix, name in _PARTITIONS.items() if (region or "").startswith(prefix)), "aws")


def _literal(prefix: str) -> str:
    """Escapes the characters of ``prefix`` that IAM would read as a wildcard or variable."""
    return "".join(f"${{{character}}}" if character in "*?$" else character for character in prefix)
