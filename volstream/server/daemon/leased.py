"""Work that one daemon at a time does while it holds a lease. Its failures are recorded in the catalog for
everyone to see.

The work itself is in ``daemon.volumes``, ``daemon.arrivals`` and ``daemon.alerts``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from volstream.base import log as logs
from volstream.base.config import Settings
from volstream.base.processes import new_owner
from volstream.base.threads import Backoff, FailureTracker, Stop, run_loop
from volstream.catalog import Catalog
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.leases import lease
from volstream.errors import CatalogError, FencedError

#: Interval of attempts to acquire the lease from another daemon.
LEASE_SECONDS = 1.0

#: Maximum delay before failed work is retried.
_CAP_SECONDS = 30.0


class Leased:
    """Work under a lease, with its problems.

    Args:
        title: of the work, such as ``writer of volume photos``.
        lease_name: see :mod:`volstream.catalog.leases`.
        condition: the object whose condition in the catalog records the problem for other processes. Without
            it, only the log does.

    Attributes:
        stop: set when it is to end.
        holds: True while it holds the lease.
        trouble: why the work currently fails.
    """

    def __init__(
        self,
        title: str,
        lease_name: str,
        catalog: Catalog,
        settings: Settings,
        log: logs.Logger,
        condition: tuple[ConditionKind, str] | None = None,
    ) -> None:
        self.stop = Stop()
        self.holds = False
        self.backoff = Backoff(cap_seconds=_CAP_SECONDS)
        self.trouble = FailureTracker(title, log, self.backoff, self.record)
        self._title = title
        self._lease_name = lease_name
        self._catalog = catalog
        self._settings = settings
        self._log = log
        self._condition = condition
        self._recorded = False
        self._turn = Stop()

    def is_wanted(self) -> bool:
        """Returns whether there is something to work on: the object may have been dropped."""
        return True

    @property
    def reason(self) -> str | None:
        """The problem, for the condition, or None."""
        return self.trouble.reason

    def end(self) -> None:
        """Makes it end, with its turn."""
        self.stop.set()
        self.hand_over()

    def hand_over(self) -> None:
        """Ends the current turn, if any, so that another daemon can take the work."""
        self._turn.set()

    def record(self, _reason: str | None = None) -> None:
        """Records the problem in the catalog.

        Only the holder of the lease, or the one who recorded the problem, clears it.
        """
        reason = self.reason
        if self._condition is None or (reason is None and not (self.holds or self._recorded)):
            return
        with suppress(CatalogError):  # while it is unavailable, the problem is in the log
            self._catalog.conditions.note(*self._condition, reason)
            self._recorded = reason is not None

    @contextmanager
    def leased(self, lost: Callable[[], object]) -> Iterator[bool]:
        """Holds the lease while the block runs. Yields False if another process has it.

        Args:
            lost: see :func:`volstream.catalog.leases.lease`.
        """
        purpose, seconds = f"daemon's {self._title}", self._settings.lease_seconds
        with lease(self._catalog.leases, self._lease_name, new_owner(), purpose, seconds, lost) as other:
            if other is not None:
                yield False
                return
            self.holds = True
            try:
                if self._condition is not None and self.trouble.reason is None:
                    # Left by an earlier holder, and cleared by the first success.
                    self.trouble.reason = self._catalog.conditions.cause(*self._condition)
                yield True
            finally:
                self.holds = False


class LeasedWorker(Leased, ABC):
    """Works in its own thread. Any error is reported, and the work is retried."""

    @abstractmethod
    def work(self, turn: Stop) -> None:
        """Works until ``turn`` is set: the lease was lost, or is to be released. The lease is released when
        this returns.

        Raises:
            FencedError: another process took over.
            Exception: any error. The work is retried.
        """

    def run(self) -> None:
        """Runs in its own thread. Returns when ended."""
        run_loop(self._try, self.stop, self.trouble)

    def _take_turn(self) -> None:
        """Works for as long as the lease is held. Returns at once if another process holds it."""
        turn = self._turn = Stop()
        if self.stop:  # set before this turn existed
            return
        if not self._catalog.leases.is_free(self._lease_name, self._settings.lease_seconds):
            return
        with self.leased(turn.set) as is_mine:
            if is_mine:
                try:
                    self.work(turn)
                except FencedError as error:
                    self._log.warning("taken_over", work=self._title, error=str(error))

    def _try(self) -> None:
        if self.is_wanted():
            try:
                self._take_turn()
            except Exception:
                if self.is_wanted():
                    raise  # otherwise dropped meanwhile; this worker will be ended
        self.stop.wait(LEASE_SECONDS)
