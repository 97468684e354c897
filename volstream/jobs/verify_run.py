"""The verification of a job's table: compared (``verify``), and put right."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from volstream.base.model.work import PlanKind
from volstream.catalog.alerts import ConditionKind
from volstream.errors import InvalidStateError, StreamStaleError
from volstream.jobs.failing import recover
from volstream.jobs.running import Planned, Run
from volstream.jobs.verify import Verification, compared
from volstream.jobs.verify_outputs import compared_outputs
from volstream.tables.delta import places
from volstream.tables.delta.damage import Damage
from volstream.tables.delta.places import is_table


class VerifyRun(Run):
    """Compares the table with the files, and processes what is wrong."""

    def verify(self, *, fix: bool, heal: bool, outputs: bool) -> Verification:
        """Recovers, compares, and with ``fix`` processes what is wrong."""
        consumptions, results = self.services.catalog.consumptions, self.services.results
        damages = results.damages(self.job, whole=heal)
        if damages and not fix:
            return self._noted(Verification(damages=damages, unit=self.job.unit))
        for damage in damages:
            results.mend(self.job, damage)
            self._stop_attempt(damage)
        fills = not self.job.takes_files  # else the files of lost rows have left the volume
        if not fix:
            self.report.recovered = recover(self.services, self.job)
            self.stream = self.services.stream(self.job)
            if not (fills or results.exists(self.job)):
                self._check_not_lost()
        else:
            self.begin(fills=fills)
            unfinished = consumptions.open_plan(self.job.stream_id)
            if unfinished is not None:
                self.process(unfinished)
        unfinished = consumptions.open_plan(self.job.stream_id)
        if unfinished is not None and not self.services.has_files(self.job, unfinished):
            unfinished = None  # the next run drops it
        stream = self.services.stream(self.job)
        try:
            covered, kind = self.services.reader.delivered(stream), PlanKind.REPAIR
        except StreamStaleError:
            if not heal:
                raise
            covered, kind = self.services.reader.present(stream), PlanKind.STREAM
        if covered is None:
            raise InvalidStateError(
                f"The job {self.job.name} has not finished its first run, so there is nothing to compare.",
                f"Run: volstream run-job {self.job.name}",
            )
        if self.report.paused is not None:
            raise InvalidStateError(
                f"The job {self.job.name} was paused before its table was compared: {self.report.paused}",
                f"Fix the cause, then run: volstream resume {self.job.name}",
            )
        if self.ended:
            return Verification()
        made = None
        if outputs:
            made = compared_outputs(self.services.catalog, self.services.settings, self.job)
        planned: Planned | None = None
        with self.services.session() as session, places.staged(self.services.warehouse, "verify") as folder:
            comparison = compared(
                self.services, session, self.job, covered, unfinished, folder, made, recreated=kind is PlanKind.STREAM
            )
            found = comparison.found
            if fix and (found.count or kind is PlanKind.STREAM):
                self.make_table()
                # If the plan's files were lost, those of the whole range would be planned, with rows that are there.
                self.job = self.services.catalog.jobs.change(self.job, clean=False)
                delivered = covered if kind is PlanKind.REPAIR else replace(covered, from_version=None)
                planned = self.services.planner.of_repair(self.job, kind, delivered, comparison.repair(), found.count)
        failed_before = self.report.progress.failed
        if planned is not None and not self.open(*planned, stream) and kind is PlanKind.STREAM:
            consumptions.advance(stream, covered.to_version, covered.table_id, self.job)
        if kind is PlanKind.STREAM and stream.began_after is not None and not self.ended:
            current = self.services.stream(self.job)
            self.services.catalog.streams.change(current, began_after=covered.to_version)
        if fix and not self.ended:
            fixed = found.count - (self.report.progress.failed - failed_before)
            found = replace(found, damages=damages, fixed=fixed)
        return found if self.ended else self._noted(found, comparison.version)

    def _stop_attempt(self, damage: Damage) -> None:
        """Abandons the attempt that a dead run left open if the log that recorded its outcome is lost. Damage to a ledger or a
        checkpoint leaves that log intact."""
        intent = self.services.catalog.consumptions.open_intent(self.job.stream_id)
        of_table = damage.location == self.services.table_of(self.job)
        if intent is not None and damage.log and of_table and not is_table(damage.location):
            self.services.catalog.consumptions.abort(intent, f"The table is damaged: {damage}.")

    def _noted(self, found: Verification, version: int | None = None) -> Verification:
        """Records and returns what was found; ``version``: of the table, if it was compared."""
        known = {"verified_version": version} if version is not None and found.is_proven else {}
        self.job = self.services.catalog.jobs.change(self.job, verified_on=datetime.now(UTC), **known)
        reason = None if found.is_right else f"does not match the files: {found.text}"
        self.services.catalog.conditions.note(ConditionKind.PROOF, self.job.id, reason)
        return found
