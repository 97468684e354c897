"""A DAG of Airflow 3 that runs a job of volstream and fails if files did. ``VOLSTREAM_URL`` and ``VOLSTREAM_TOKEN`` say where."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.sdk import DAG, BaseOperator

from volstream.client import Client


class VolstreamRunOperator(BaseOperator):
    """Runs a job once, and waits for its end; pushes how many files and rows that were."""

    template_fields = ("job",)

    def __init__(self, *, job: str, **options: Any) -> None:
        super().__init__(**options)
        self.job = job

    def execute(self, context: Any) -> dict[str, int]:
        """Raises RuntimeError if files failed; the next attempt of the task retries these."""
        with Client() as daemon:
            if context["ti"].try_number > 1:
                daemon.retry(self.job)  # by itself the job would retry them later, and this attempt would succeed
            done = daemon.run(self.job)
        if done["failed"]:
            raise RuntimeError(f"{done['failed']} files failed: volstream list failures --job {self.job}")
        return {key: done[key] for key in ("processed", "rows")}


with DAG("sizes", start_date=datetime(2026, 1, 1), schedule="@hourly", catchup=False):
    VolstreamRunOperator(task_id="run", job="sizes", retries=2)
