"""A sensor of Dagster that starts a job of Dagster's when a job of volstream has committed. ``VOLSTREAM_URL`` and
``VOLSTREAM_TOKEN`` say where."""

from collections.abc import Iterator

from dagster import Definitions, OpExecutionContext, RunRequest, SensorEvaluationContext, job, op, sensor

from volstream.client import Client


@op
def report(context: OpExecutionContext) -> None:
    """Reads what is new."""
    context.log.info("The table has new rows.")


@job
def daily_report() -> None:
    """What follows new rows."""
    report()


@sensor(job=daily_report, minimum_interval_seconds=30)
def new_rows(context: SensorEvaluationContext) -> Iterator[RunRequest]:
    """Looks for the newest batch of the job ``sizes``."""
    with Client() as daemon:
        batches = daemon.get("/jobs/sizes/batches", limit=1)["batches"]
    if batches and batches[0]["id"] != context.cursor:
        yield RunRequest(run_key=batches[0]["id"])
        context.update_cursor(batches[0]["id"])


defs = Definitions(jobs=[daily_report], sensors=[new_rows])
