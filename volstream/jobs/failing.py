"""The failed files of attempts: recorded with them, and ended by later ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from volstream.base.definitions import FileJob, Volume
from volstream.base.model.work import PERMANENT, SUPERSEDED, Batch, Failure, FailureKind, FailureState, Intent, Plan
from volstream.base.threads import Backoff
from volstream.jobs import plan
from volstream.jobs.services import JobServices
from volstream.jobs.staged import Staged


def note_failures(
    services: JobServices,
    job: FileJob,
    volume: Volume,
    staged: Staged,
    batch: tuple[Plan, Batch],
    intent: Intent,
    earlier: Mapping[str, Failure],
) -> int:
    """Records failures as pending; returns how many have waited too long to be called later."""
    (open_plan, of), settings = batch, services.settings
    backoff = Backoff(settings.retry_first_seconds, settings.retry_max_seconds)
    policy = RetryPolicy(job.retries, backoff, settings.retry_later_max_seconds)
    now, randomness = datetime.now(UTC), random.Random()
    moved: list[str] = []
    given_up = 0

    def found() -> Iterator[Failure]:
        nonlocal given_up
        for row in staged.failures():
            kind = FailureKind(row["error_kind"])
            message = row["error_message"]
            before = earlier.get(row["path"])
            if before is not None and before.file_version != row["file_version"]:
                before = None
            attempts = 0 if before is None else before.attempts
            since = policy.waiting_since(kind, before, now)
            next_try: datetime | None
            if kind is FailureKind.HELD:
                after = row["retry_after"]
                next_try = None if after is None else now + timedelta(seconds=after)
            elif since is not None:
                next_try = policy.later(row["retry_after"], now)
            else:
                attempts += 1
                if kind is FailureKind.RETRY_LATER:
                    kind, given_up = FailureKind.RAISED, given_up + 1
                    message = f"Gave up after retrying for longer than retry_later_max_seconds: {message}"
                next_try = policy.next_try(kind, attempts, now, randomness)
            if kind in SUPERSEDED:
                moved.append(row["path"])
            yield Failure(
                job_id=job.id,
                path=row["path"],
                file_version=row["file_version"],
                commit_version=row["commit_version"],
                state=FailureState.PENDING,
                kind=kind,
                message=message,
                traceback=row["error_traceback"],
                attempts=attempts,
                next_try=next_try,
                batch_id=of.id,
                attempt=intent.attempt,
                failed_on=now,
                waiting_since=since,
            )

    services.catalog.failures.add_pending(found())
    if moved and job.group_by is not None:
        moved = [*plan.files_in_sets(open_plan.location, moved)]
    if moved:
        services.catalog.refreshes.ask_check(volume.id, moved)
    return given_up


def recover(services: JobServices, job: FileJob, why: str = "Its process ended.") -> bool:
    """Settles a failed attempt, or one that a dead process left open; returns False if there was none.

    Args:
        why: recorded as the reason if the attempt was not committed.

    Raises:
        As :meth:`Consumer.settle`.
    """

    def superseded_in(batch: Batch) -> list[str]:
        open_plan = services.catalog.reports.plan(batch.plan_id)
        assert open_plan is not None, "a batch refers to its plan"
        return list(earlier_failures(services, job, open_plan, batch)) if services.has_files(job, open_plan) else []

    return services.consumer.settle(job.stream_id, superseded_in, why) is not None


def earlier_failures(services: JobServices, job: FileJob, open_plan: Plan, batch: Batch) -> dict[str, Failure]:
    """Returns active failures of the files in this batch, by path; they end whatever the files' outcome now."""
    active = services.catalog.failures.active(job.id, after=batch.after_path, until=batch.until_path)
    by_path = {failure.path: failure for failure in active}
    ending = plan.contained_paths(open_plan.location, by_path, batch) if by_path else set()
    origins = plan.origins(open_plan.location, batch)
    if origins is not None:
        moved = services.catalog.failures.active(job.id, until=origins[1])
        by_path |= {failure.path: failure for failure in moved}
        ending |= plan.contained_paths(open_plan.location, [failure.path for failure in moved], batch, column="old_path")
    return {path: by_path[path] for path in ending}


@dataclass(frozen=True)
class RetryPolicy:
    """Retries after failures.

    Attributes:
        retries: maximum number of retries after the first attempt.
        backoff: the delays before the retries.
        later_max_seconds: how long a function may ask to be called later for a file.
    """

    retries: int
    backoff: Backoff
    later_max_seconds: float

    def waiting_since(self, kind: FailureKind, before: Failure | None, now: datetime) -> datetime | None:
        """Returns since when the function has asked to be called later; None: it did not ask, or has asked for too long.

        Args:
            before: the earlier failure of the same file version.
        """
        since = (None if before is None else before.waiting_since) or now
        too_long = (now - since).total_seconds() > self.later_max_seconds
        return None if kind is not FailureKind.RETRY_LATER or too_long else since

    def later(self, after: float, now: datetime) -> datetime:
        """Returns when to call a function again that asked to be called ``after`` seconds later."""
        return now + timedelta(seconds=min(after, self.later_max_seconds))

    def next_try(self, kind: FailureKind, attempts: int, now: datetime, randomness: random.Random) -> datetime | None:
        """Returns when a file that failed ``attempts`` times is due again; None: no automatic retry."""
        if kind in PERMANENT or (attempts > self.retries and kind not in SUPERSEDED):
            return None
        return now + timedelta(seconds=self.backoff.delay(attempts, randomness.random))
