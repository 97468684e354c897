"""What the policies of all providers have in common. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from volstream.files.providers.base import RequiredAccess

#: Placeholder for the account of volstream's keys, which only its owner knows.
ACCOUNT = "ACCOUNT_ID"

#: Placeholder for a bucket while there is no volume.
_ANY_BUCKET = "BUCKET"


def by_bucket(needs: Sequence[RequiredAccess]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields each bucket, with the prefixes that are read and those that are written; neither is below another one."""
    needs = needs or [RequiredAccess(_ANY_BUCKET, "")]
    for bucket in sorted({need.bucket for need in needs}):
        here = [need for need in needs if need.bucket == bucket]
        yield bucket, _outermost(need.root for need in here), _outermost(need.root for need in here if need.writes)


def allowed(actions: Sequence[str], resources: Sequence[str], condition: Any = None) -> dict[str, Any]:
    """Returns a statement that allows these actions."""
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": list(resources)}
    return statement if condition is None else {**statement, "Condition": condition}


def queues_of(needs: Sequence[RequiredAccess]) -> list[str]:
    """Returns the names or URLs of the queues."""
    return sorted({need.queue for need in needs if need.queue})


def last_part(queue: str) -> str:
    """Returns the name of a queue given by name or URL."""
    return queue.rstrip("/").rpartition("/")[2]


def account_of(role: str | None, position: int) -> str:
    """Returns the part of a role's name that is its account; ``*`` without a role."""
    return (role.split(":")[position] if role else "") or "*"


def _outermost(roots: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for root in sorted(set(roots)):
        if not any(root.startswith(outer) for outer in kept):
            kept.append(root)
    return kept
