"""Who gets the alerts about a problem."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import objects
from volstream.base import config
from volstream.catalog import Catalog
from volstream.ops.alerts import conditions
from volstream.ops.inspection.status import Problem, ProblemCause


@pytest.mark.parametrize("own", [None, [], ["team"]])
@pytest.mark.parametrize("cause", [ProblemCause.RUN, ProblemCause.OTHER])
def test_problems_of_a_job_and_its_stream_go_to_its_own_receivers(
    tmp_path: Path, own: Sequence[str] | None, cause: ProblemCause
) -> None:
    catalog = Catalog(config.load(tmp_path).database_url)
    volume, stream = objects.volume(), objects.stream()
    job = objects.job(stream, alert=own)
    with catalog.database.transaction() as transaction:
        catalog.volumes.add(transaction, volume)
        catalog.streams.add(transaction, stream)
        catalog.jobs.add(transaction, job)
    of_stream = ProblemCause.STALE if cause is ProblemCause.RUN else cause
    problems = [
        Problem(True, "job", str(job.name), "It is wrong.", "Look.", cause),
        Problem(True, "stream", str(stream.name), "It is away.", "Look.", of_stream),
        Problem(True, "volume", str(volume.name), "Its bucket does not exist.", "Create it.", ProblemCause.OTHER),
    ]
    found, _ = conditions(catalog, problems)
    expected = None if own is None else tuple(own)
    assert [one.subject.to for one in found] == [expected, expected, None]
    catalog.close()
