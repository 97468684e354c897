"""Where a run of a job is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Progress:
    """Where a run is; its observer is told after each step.

    Attributes:
        files, bytes: of all batches planned so far.
        failed, overtaken: of ``done_files``; the latter were gone or another version before their turn, which is nobody's
            failure.
        moves: how many of ``done_files`` are moved ones.
        code_changed: the function's source is another one than when the job was made.
    """

    files: int = 0
    bytes: int = 0
    done_files: int = 0
    done_bytes: int = 0
    failed: int = 0
    overtaken: int = 0
    rows: int = 0
    removals: int = 0
    moves: int = 0
    batches: int = 0
    code_changed: bool = False

    @property
    def processed(self) -> int:
        """Files that were done and are in the table as they should."""
        return self.done_files - self.failed - self.overtaken


#: Told of a run's progress.
Observer = Callable[[Progress], None]
