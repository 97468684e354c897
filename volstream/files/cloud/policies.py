"""Policies that a provider needs so that volstream may read and write: trust in roles, and least permissions of volumes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

#: Placeholder for the account of volstream's keys, which only its owner knows.
ACCOUNT = "ACCOUNT_ID"

#: Placeholder for a bucket while there is no volume.
_ANY_BUCKET = "BUCKET"

#: Region prefixes of Amazon's other partitions.
_PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}

_MNS_HOST = re.compile(r"(\d+)\.mns\.([a-z0-9-]+?)(?:-internal)?\.aliyuncs\.com")


@dataclass(frozen=True)
class RequiredAccess:
    """The access that one volume needs.

    Attributes:
        root: prefix of all its keys; empty, or ending in ``/``.
        queue: name or URL of its queue at the provider, or None.
        writes: jobs write outputs to it.
    """

    bucket: str
    root: str
    queue: str | None = None
    writes: bool = False


def trust_policy(provider: str, external_id: str, role_arn: str | None) -> dict[str, Any]:
    """Returns the policy of who may assume the role: the account of volstream's own keys, if it sends the external id."""
    condition = {"StringEquals": {"sts:ExternalId": external_id}}
    if provider == "oss":
        statement = {
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"RAM": [f"acs:ram::{ACCOUNT}:root"]},
            "Condition": condition,
        }
        return {"Version": "1", "Statement": [statement]}
    principal = {"AWS": f"arn:{_partition(role_arn, None)}:iam::{ACCOUNT}:root"}
    return {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole", "Condition": condition}],
    }


def permission_policy(
    provider: str, needs: Sequence[RequiredAccess], region: str | None, role_arn: str | None
) -> dict[str, Any]:
    """Returns the permissions of the role, or of the user if there is no role; without volumes, for a bucket yet to be named."""
    wanted = needs or [RequiredAccess(_ANY_BUCKET, "")]
    if provider == "oss":
        return {"Version": "1", "Statement": _alibaba(wanted, region or "*", _account(role_arn, 3))}
    return {"Version": "2012-10-17", "Statement": _amazon(wanted, region, role_arn)}


def _amazon(needs: Sequence[RequiredAccess], region: str | None, role_arn: str | None) -> list[dict[str, Any]]:
    partition = _partition(role_arn, region)
    statements: list[dict[str, Any]] = []
    encrypted: dict[str, list[str]] = {"s3": [], "sqs": []}
    for bucket in sorted({need.bucket for need in needs}):
        roots = _outermost(need.root for need in needs if need.bucket == bucket)
        resource = f"arn:{partition}:s3:::{bucket}"
        limited = (
            {"Condition": {"StringLike": {"s3:prefix": [f"{_literal(root)}*" for root in roots]}}} if all(roots) else {}
        )
        statements += [
            {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": [resource], **limited},
            {
                "Effect": "Allow",
                "Action": ["s3:GetObject", "s3:GetObjectVersion"],
                "Resource": [f"{resource}/{_literal(root)}*" for root in roots],
            },
        ]
        written = _outermost(need.root for need in needs if need.bucket == bucket and need.writes)
        if written:
            actions = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
            places = [f"{resource}/{_literal(root)}*" for root in written]
            statements.append({"Effect": "Allow", "Action": actions, "Resource": places})
            # The parts that killed workers left. AWS cannot limit it to a prefix.
            statements.append({"Effect": "Allow", "Action": ["s3:ListBucketMultipartUploads"], "Resource": [resource]})
        # For a bucket with a key of its own, the bucket alone stands for all of its objects.
        encrypted["s3"] += [resource, *(f"{resource}/{_literal(root)}*" for root in roots)]
    queues = encrypted["sqs"] = [
        _sqs_arn(queue, partition, region or "*", _account(role_arn, 4))
        for queue in sorted({need.queue for need in needs if need.queue})
    ]
    if queues:
        actions = [
            "sqs:ReceiveMessage",
            "sqs:DeleteMessage",
            "sqs:ChangeMessageVisibility",
            "sqs:GetQueueAttributes",
            "sqs:GetQueueUrl",
        ]
        statements.append({"Effect": "Allow", "Action": actions, "Resource": queues})
    return statements + [_decryption(service, arns) for service, arns in encrypted.items() if arns]


def _decryption(service: str, arns: Sequence[str]) -> dict[str, Any]:
    """Returns the permission to use KMS keys for exactly these objects or messages, if they are encrypted.

    The keys are not known here, but what they encrypt is: a service states it with each use.
    """
    return {
        "Effect": "Allow",
        "Action": ["kms:Decrypt"],
        "Resource": ["*"],
        "Condition": {"StringLike": {f"kms:EncryptionContext:aws:{service}:arn": list(arns)}},
    }


def _alibaba(needs: Sequence[RequiredAccess], region: str, account: str) -> list[dict[str, Any]]:
    statements: list[dict[str, Any]] = []
    for bucket in sorted({need.bucket for need in needs}):
        roots = _outermost(need.root for need in needs if need.bucket == bucket)
        resource = f"acs:oss:*:{account}:{bucket}"
        limited = {"Condition": {"StringLike": {"oss:Prefix": [f"{root}*" for root in roots]}}} if all(roots) else {}
        statements += [
            {"Effect": "Allow", "Action": ["oss:ListObjects"], "Resource": [resource], **limited},
            {"Effect": "Allow", "Action": ["oss:GetObject"], "Resource": [f"{resource}/{root}*" for root in roots]},
        ]
        written = _outermost(need.root for need in needs if need.bucket == bucket and need.writes)
        if written:
            actions = ["oss:PutObject", "oss:DeleteObject", "oss:AbortMultipartUpload"]
            statements.append(
                {"Effect": "Allow", "Action": actions, "Resource": [f"{resource}/{root}*" for root in written]}
            )
            statements.append({"Effect": "Allow", "Action": ["oss:ListMultipartUploads"], "Resource": [resource]})
    places = [_mns_name(queue, region, account) for queue in sorted({need.queue for need in needs if need.queue})]
    if places:
        statements += [
            {"Effect": "Allow", "Action": ["mns:GetQueueAttributes"], "Resource": places},
            {
                "Effect": "Allow",
                "Action": ["mns:ReceiveMessage", "mns:DeleteMessage", "mns:ChangeMessageVisibility"],
                "Resource": [f"{place}/messages" for place in places],
            },
        ]
    return statements


def _outermost(roots: Iterable[str]) -> list[str]:
    """Returns the roots that are not below another one."""
    kept: list[str] = []
    for root in sorted(set(roots)):
        if not any(root.startswith(outer) for outer in kept):
            kept.append(root)
    return kept


def _sqs_arn(queue: str, partition: str, region: str, account: str) -> str:
    """Returns the ARN of a queue given by name, or by URL: ``https://sqs.<region>.amazonaws.com/<account>/<name>``."""
    place = urlsplit(queue)
    parts = place.path.strip("/").split("/")
    if place.scheme and len(parts) == 2:
        host = (place.hostname or "").split(".")
        region = host[1] if host[0] == "sqs" and len(host) > 2 else region
        account = parts[0]
    return f"arn:{partition}:sqs:{region}:{account}:{_last(queue)}"


def _mns_name(queue: str, region: str, account: str) -> str:
    """Returns the resource of a queue given by name or URL: ``https://<account>.mns.<region>.aliyuncs.com/queues/<name>``."""
    match = _MNS_HOST.fullmatch(urlsplit(queue).hostname or "")
    if match is not None:
        account, region = match[1], match[2]
    return f"acs:mns:{region}:{account}:/queues/{_last(queue)}"


def _last(queue: str) -> str:
    return queue.rstrip("/").rpartition("/")[2]


def _partition(role_arn: str | None, region: str | None) -> str:
    """Returns Amazon's partition, such as ``aws`` or ``aws-cn``, from the role's ARN, else from the region."""
    if role_arn:
        return role_arn.split(":")[1]
    return next((name for prefix, name in _PARTITIONS.items() if (region or "").startswith(prefix)), "aws")


def _account(role_arn: str | None, position: int) -> str:
    return (role_arn.split(":")[position] if role_arn else "") or "*"


def _literal(prefix: str) -> str:
    """Returns ``prefix`` with characters escaped that IAM would read as a wildcard or variable."""
    return "".join(f"${{{character}}}" if character in "*?$" else character for character in prefix)
