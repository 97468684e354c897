"""The ordinary run of a job: what its stream has, and the failures that are due."""

from __future__ import annotations

from datetime import UTC, datetime

from volstream.base import faults
from volstream.base.definitions import Stream, Write
from volstream.base.model.work import PlanKind
from volstream.jobs import plan
from volstream.jobs.running import Run
from volstream.tables.delta import places

#: Maximum number of files per plan of retries: small, so that a bad file delays few others.
_RETRY_FILES = 1000


class StreamRun(Run):
    """Processes the stream's changes."""

    def go(self, *, until_empty: bool) -> None:
        """Recovers, finishes any open plan, then plans and processes new work."""
        self.begin()
        stream = self.stream
        unfinished = self.services.catalog.consumptions.open_plan(self.job.stream_id)
        if unfinished is not None:
            self.process(unfinished)
            stream = self.services.stream(self.job)
        if not self.ended:
            self._plan_strays()
        while not self.ended:
            worked = self._plan_stream(stream)
            if not self.ended:
                worked = self._plan_retries() or worked
            # What has changed since the stream was created follows its initial rows in the same run.
            if not (worked and (until_empty or stream.initial)):
                break
            stream = self.services.stream(self.job)
        if batches := self.report.progress.batches:
            self.services.results.compact(self.job, batches, self.stop)

    def _plan_strays(self) -> None:
        """Plans and processes the removal of rows whose files no longer exist, if the stream cannot report them."""
        if not self.job.may_have_strays:
            return
        stream = self.services.stream(self.job)
        covered = self.services.reader.pin_newest(stream)
        if covered is None:
            return
        if self.job.write is Write.UPSERT and self.services.results.exists(self.job):
            self.make_table()
            covered.source.make_durable(covered.table_id, covered.to_version)
            table = places.table_location(self.services.warehouse, self.job.into)
            with self.planning(PlanKind.STRAYS) as noted:
                open_plan, batches = noted(self.services.planner.of_strays(self.services.session, self.job, covered, table))
            self.open(open_plan, batches, stream)
        if not self.ended:
            self.job = self.services.catalog.jobs.change(self.job, may_have_strays=False)

    def _plan_stream(self, stream: Stream) -> bool:
        """Plans and processes the stream's range; returns False if it is empty."""
        covered = self.services.reader.pin_news(stream)
        if covered is None or covered.empty:
            return False
        covered.source.make_durable(covered.table_id, covered.to_version)
        if self.services.reader.only_upkeep(covered):
            self.services.catalog.consumptions.advance(stream, covered.to_version, covered.table_id)
            return False
        self.make_table()
        with self.planning(PlanKind.STREAM) as noted:
            open_plan, batches = noted(self.services.planner.of_range(self.services.session, self.job, covered))
        faults.point("plan.written")
        if gone := self.services.planner.unreported(self.job, covered):
            self.services.catalog.failures.forget(self.job, gone)
        if not self.open(open_plan, batches, stream):
            self.services.catalog.consumptions.advance(stream, covered.to_version, covered.table_id, self.job)
        return True  # changes follow even if no initial row is wanted

    def _plan_retries(self) -> bool:
        """Plans and processes the failures that are due; returns False if there are none."""
        due = self.services.catalog.failures.due(self.job.id, datetime.now(UTC), _RETRY_FILES)
        if not due:
            return False
        stream = self.services.stream(self.job)
        covered = self.services.reader.pin_newest(stream)
        if covered is None:
            return False
        unwanted = self.services.planner.excluded(self.services.session, self.job, covered, due)
        if unwanted:
            self.services.catalog.failures.forget(self.job, unwanted)
            due = [failure for failure in due if failure.path not in unwanted]
        if not due:
            return True  # there may be more
        self.make_table()
        with self.planning(PlanKind.RETRY) as noted:
            open_plan, batches = noted(self.services.planner.of_retries(self.services.session, self.job, covered, due))
        asked = [failure.path for failure in due]
        planned = plan.contained_paths(open_plan.location, asked)
        unplanned = [failure for failure in due if failure.path not in planned]
        self.services.catalog.failures.postpone(self.job, unplanned, datetime.now(UTC))
        self.open(open_plan, batches, stream)
        return True
