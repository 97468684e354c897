"""The replay of a job: files that were delivered are processed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from volstream.base.model.work import Plan, PlanKind
from volstream.jobs.running import Run
from volstream.tables.delta import places


class ReplayRun(Run):
    """Processes delivered files again."""

    def replay(self, where: str | None, is_cancelled: Callable[[], bool], among: Sequence[str] | None = None) -> None:
        """Recovers, finishes any open plan, then plans and processes previously delivered files."""
        self.begin(fills=where is None and among is None)
        fingerprint = self.job.fingerprint
        unfinished = self.services.catalog.consumptions.open_plan(self.job.stream_id)
        if unfinished is not None and unfinished.kind is PlanKind.REPLAY:
            self._drop(unfinished)  # its beginning may have run with other code
        elif unfinished is not None:
            self.process(unfinished)
        stream = self.services.stream(self.job)
        covered = None if self.ended else self.services.reader.delivered(stream)
        if covered is None:
            return
        self.make_table()
        with self.planning(PlanKind.REPLAY) as noted:
            open_plan, batches = noted(self.services.planner.of_replay(self.services.session, self.job, covered, where, among))
        if where is None:
            self.job = self.services.catalog.jobs.change(self.job, fingerprint=self.source.behaviour)
            self.report.progress.code_changed = False
        # From now on the table may have rows of any file.
        self.job = self.services.catalog.jobs.change(self.job, clean=False)
        self.open(open_plan, batches, stream)
        if self.stop and is_cancelled():
            remaining = self.services.catalog.consumptions.open_plan(self.job.stream_id)
            if remaining is not None and remaining.id == open_plan.id:
                self._drop(remaining)
                self.job = self.services.catalog.jobs.change(self.job, fingerprint=fingerprint)

    def _drop(self, open_plan: Plan) -> None:
        self.services.catalog.consumptions.drop_plan(open_plan)
        places.discard(open_plan.location)
