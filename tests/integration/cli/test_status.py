"""``status`` reports triggered jobs that no daemon starts."""

from __future__ import annotations

from tests.commands import Shell
from volstream.api.session import Session
from volstream.base.processes import new_owner
from volstream.catalog.leases import lease, of_volume

WHY = "daemon: No daemon is running, so nothing starts 1 job with a trigger: j. Run: volstream daemon"


def test_triggered_jobs_that_no_daemon_starts_need_attention(shell: Shell) -> None:
    shell.ok("create-job", "j", "--volume", "v", "--function", f"{shell.functions}:one", "--returns", "n INT", "--into", "t")
    assert "daemon" not in shell.ok("status")  # on demand
    shell.ok("alter-job", "j", "--on-change")
    assert WHY in shell.ok("status")
    with Session.builder.config("home", shell.home).create() as session:
        kept = of_volume(session.volumes.get("v").id)
        with lease(session.home.catalog.leases, kept, new_owner(), "keeps v", 60.0):
            assert WHY not in shell.ok("status")
    shell.ok("pause", "j")
    assert WHY not in shell.ok("status")
