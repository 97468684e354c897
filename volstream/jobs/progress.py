"""The progress of a job's run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from volstream.base.model.work import SUPERSEDED, FailureKind


@dataclass
class Progress:
    """A run's progress; its observer is notified after each step.

    Attributes:
        files, bytes: of all batches planned so far. A file that the run retries counts once.
        failed, overtaken: of ``done_files``; overtaken: removed or changed before their turn, which is not a failure.
        later: files of ``done_files`` whose function asked to be called later, which is not a failure either.
        held: sets of files that are held back, likewise.
        moves: how many of ``done_files`` were moved.
        counted: what the function counted, by name.
        new_columns: names of those that the table got, or got fields of, from files that were loaded.
        code_changed: the function's source has changed since the job was created.
    """

    files: int = 0
    bytes: int = 0
    done_files: int = 0
    done_bytes: int = 0
    failed: int = 0
    overtaken: int = 0
    later: int = 0
    held: int = 0
    rows: int = 0
    removals: int = 0
    moves: int = 0
    batches: int = 0
    code_changed: bool = False
    counted: dict[str, float] = field(default_factory=dict)
    new_columns: list[str] = field(default_factory=list)

    @property
    def processed(self) -> int:
        """Number of files that were processed successfully."""
        return self.done_files - self.failed - self.overtaken - self.later - self.held

    def add(self, **counted: int) -> None:
        """Adds to attributes that are numbers, by name."""
        for name, number in counted.items():
            setattr(self, name, getattr(self, name) + number)

    def take_back(self, kinds: Sequence[FailureKind]) -> None:
        """Subtracts files that did not succeed earlier in the run and were retried, so that each counts once."""
        overtaken, later = sum(kind in SUPERSEDED for kind in kinds), kinds.count(FailureKind.RETRY_LATER)
        held = kinds.count(FailureKind.HELD)
        self.files -= len(kinds)
        self.done_files -= len(kinds)
        self.overtaken -= overtaken
        self.later -= later
        self.held -= held
        self.failed -= len(kinds) - overtaken - later - held


#: Receives a run's progress.
Observer = Callable[[Progress], None]
