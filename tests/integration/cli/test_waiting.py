"""Commands that wait for another run of a job."""

from __future__ import annotations

import threading

import pytest

from tests.commands import Shell, shell
from volstream.api.session import Session
from volstream.base import config
from volstream.catalog.leases import of_job

__all__ = ["shell"]


@pytest.mark.parametrize("command", ["run-job", pytest.param("replay", marks=pytest.mark.long)])
def test_a_job_that_is_running_is_refused_or_waited_for(shell: Shell, command: str) -> None:
    assert shell.job("j", "one")[0] == 0
    shell.ok("pause", "j")  # so that the command gets as far as the run
    with Session(config.load(shell.home)) as session:
        lease, leases = (of_job(session.jobs.get("j").id), "elsewhere/1/1.00/x"), session.home.catalog.leases
        leases.acquire(*lease, "test", 60)
        code, _, err = shell(command, "j")
        assert (code, "in progress, on elsewhere" in err) == (3, True)
        threading.Timer(0.5, leases.release, lease).start()
        _, _, err = shell(command, "j", "--wait")
    assert "Another run of the job j is in progress, on elsewhere. Waiting for it to end." in err
    assert "The job j is paused" in err
