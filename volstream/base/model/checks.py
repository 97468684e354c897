"""The results of checks, such as those of ``volstream doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckState(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        what: subject, such as ``queue``.
        said: the finding.
        fix: what to do about it; empty if nothing is wrong.
    """

    what: str
    state: CheckState
    said: str
    fix: str = ""
