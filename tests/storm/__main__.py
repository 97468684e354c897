"""Kills the processes of a home at random moments while its files change, and looks whether its tables are true afterwards.

SIGKILL meets daemon, JVM, Python workers, children of ``--isolate``, background engines and commands, at any moment and at the
points of ``volstream.base.faults``; some are frozen for a while; the home's disk is full at times, or read-only after the
power went (where a tmpfs can be mounted); the clock is moved, and what was not synced is lost with the power (where there is a
C compiler); the database server of the catalog crashes; bucket and queue of the last volume are slow or fail (``--store``).
After the last kill the daemon is left alone until results, failures and directories are what the files say; the seconds that
this took are printed. What happens follows from the seed: one that fails is run again by the same seed and options. The working
folder, with the log of all that was done, is kept then.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import click

from tests.storm.schedule import Deed
from tests.storm.storm import Plan, Storm, UntrueError


@click.command(help=__doc__)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--kills", type=int, default=1000, show_default=True, help="Processes to kill.")
@click.option("--catalog", type=click.Choice(["sqlite", "postgres"]), default="sqlite", show_default=True)
@click.option("--store", type=click.Choice(["local", "s3", "oss", "gs", "az"]), default="local", show_default=True)
@click.option("--files", type=int, default=60, show_default=True, help="Of each volume, to begin with.")
@click.option("--batch", type=int, default=50, show_default=True, help="Files of a batch.")
@click.option("--jobs", type=click.Choice(["1", "2", "4"]), default="4", show_default=True, help="Two volumes for four.")
@click.option("--longest-pause", type=float, default=0.9, show_default=True, help="Seconds between two steps.")
@click.option("--often", type=click.Choice([deed.value for deed in Deed]), help="Done at every third step.")
@click.option("--outputs", is_flag=True, help="One more job makes files in another volume.")
@click.option("--sets", is_flag=True, help="One more job takes the files of a folder together.")
@click.option("--landing", is_flag=True, help="Two more jobs take the files of their volumes away, one into an archive.")
@click.option("--changes", is_flag=True, help="Jobs are altered, paused and replaced meanwhile.")
@click.option("--steps", is_flag=True, help="One more job's function has a step.")
@click.option("--many", type=int, default=0, help="So many more volumes with a job each.")
@click.option("--keep", is_flag=True, help="Keep the working folder in any case.")
def main(
    seed: int,
    kills: int,
    catalog: str,
    store: str,
    files: int,
    batch: int,
    jobs: str,
    longest_pause: float,
    often: str | None,
    outputs: bool,
    sets: bool,
    landing: bool,
    changes: bool,
    steps: bool,
    many: int,
    keep: bool,
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="volstream-storm-"))
    plan = Plan(
        seed,
        kills,
        catalog,
        files,
        batch,
        jobs=int(jobs),
        longest_pause=longest_pause,
        store=store,
        often=often or "",
        outputs=outputs,
        sets=sets,
        landing=landing,
        changes=changes,
        steps=steps,
        many=many,
    )
    click.echo(f"{plan} in {folder}")
    try:
        report = Storm(plan, folder, click.echo).run()
    except BaseException as error:
        click.echo(f"Seed {seed} failed; see {folder}/storm.log", err=True)
        if isinstance(error, UntrueError):
            sys.exit(str(error))
        raise
    killed = ", ".join(f"{count} {kind}" for kind, count in sorted(report.killed.items()))
    click.echo(
        f"Seed {seed}: {report.kills} kills ({killed}) in {report.steps} steps and {report.seconds:.0f} s; "
        f"true {report.true_seconds:.1f} s after the last."
    )
    if not keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
