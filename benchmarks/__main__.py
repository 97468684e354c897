"""Runs the benchmarks: `make bench`. Uses .bench/ of the checkout, re-created each time; and .bench-files/ and
.bench-environments/, which are kept, because they take long to create."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from benchmarks import (
    chart,
    cluster,
    directories,
    far,
    growth,
    ingest,
    inventory,
    leader,
    listing,
    many,
    processes,
    queues,
    report,
    scale,
    scenarios,
    soak,
    steps,
    tables,
    waits,
)
from benchmarks.contenders import CHECKOUT, OTHERS, Contender, Raw, SparkFiles, Volstream
from benchmarks.files import Tree
from benchmarks.report import Figures
from volstream.api.session import Session

RESULTS, CHART = CHECKOUT / "benchmarks" / "results.json", CHECKOUT / "benchmarks" / "chart.png"

_PARTS = ("files", "slow", "cold", "live")

#: These have separate figures; the first takes as long as all others together.
_SCALE, _TABLES, _QUEUES, _BURST, _WAIT, _CLUSTER = "scale", "tables", "queues", "burst", "wait", "cluster"

#: So do these, which need no engine.
_DIRECTORY, _CLI, _SOAK, _INGEST, _GROWTH = "directory", "cli", "soak", "ingest", "growth"
_INVENTORY, _LISTING, _MANY, _FAR, _STEPS = "inventory", "listing", "many", "far", "steps"

_OWN = (
    *(_SCALE, _TABLES, _QUEUES, _BURST, _WAIT, _CLUSTER),
    *(_DIRECTORY, _CLI, _SOAK, _INGEST, _GROWTH, _INVENTORY, _LISTING, _MANY, _FAR, _STEPS),
)

_console = Console(width=100)


@click.command()
@click.option(
    "--files",
    "counts",
    multiple=True,
    type=int,
    envvar="BENCH_N",
    help="2000 and 10000; for directory 100000, for cluster 20000; for many, volumes: 10, 100, 400, 1000.",
)
@click.option("--rounds", type=int, default=3, show_default=True)
@click.option("--part", "parts", multiple=True, type=click.Choice([*_PARTS, *_OWN]), help="Only this; may be given again.")
@click.option("--spark/--no-spark", default=True, show_default=True, help="Spark's file source, at the fewest files.")
@click.option(
    "--with",
    "others",
    multiple=True,
    type=click.Choice([*OTHERS]),
    help="Compare it, too, with the files: installs it into an environment of its own.",
)
@click.option("--rows", "sizes", multiple=True, type=int, help="For scale, tables, directory, inventory, listing and cluster.")
@click.option("--messages", multiple=True, type=int, help="For queues: 100 and 1000.")
@click.option("--queue", "kinds", multiple=True, type=click.Choice([*queues.KINDS]), help="For queues: both.")
@click.option("--place", type=click.Choice([*many.PLACES]), default="folders", show_default=True, help="For many: the volumes'.")
@click.option("--refreshes", type=int, help="Again after so many: for scale none, for directory 500; for soak in all, 1000000.")
@click.option("--commits", type=int, default=growth.COMMITS, show_default=True, help="For growth.")
@click.option("--save", is_flag=True, help="Keep results and chart in benchmarks/, as the README shows them.")
def main(
    counts: tuple[int, ...],
    rounds: int,
    parts: tuple[str, ...],
    spark: bool,
    others: tuple[str, ...],
    sizes: tuple[int, ...],
    messages: tuple[int, ...],
    kinds: tuple[str, ...],
    place: str,
    refreshes: int | None,
    commits: int,
    save: bool,
) -> None:
    """Measures volstream and its alternatives; wrong rows end it with an error."""
    given, counts = counts, tuple(sorted(counts or (2_000, 10_000)))
    os.environ["PYTHONPATH"] = str(CHECKOUT)  # so that the engine's Python workers find the functions of Spark's contender
    scratch = CHECKOUT / ".bench"
    home = scratch / "home"
    if home.exists():
        processes.command(home, "engine", "stop", "--now")
    shutil.rmtree(scratch, ignore_errors=True)
    home.mkdir(parents=True)
    tree, figures = Tree(scratch / "files"), Figures()
    processes.command(home, "init")
    try:
        if _DIRECTORY in parts:
            after = 500 if refreshes is None else refreshes
            _measure_directory(home, sizes or (10_000, 1_000_000), given or (100_000,), rounds, after)
        if _CLI in parts:
            _measure_command(scratch, max(counts), rounds)
        if _SOAK in parts:
            _measure_soak(scratch, refreshes or soak.REFRESHES)
        if _GROWTH in parts:
            _measure_growth(home, commits)
        if _MANY in parts:
            _measure_many(scratch / "many", given or many.NUMBERS, place)
        if _INVENTORY in parts:
            _measure_bucket(home, _INVENTORY, inventory.measure, sizes or (1_000_000,))
        if _LISTING in parts:
            _measure_bucket(home, _LISTING, listing.measure, sizes or (1_000_000,))
        if _BURST in parts:
            _measure_burst(home, tree, max(given, default=directories.BURST), rounds)
        if _WAIT in parts:
            _measure_wait(home, max(given, default=1_000), rounds)
        if _CLUSTER in parts:
            _measure_cluster(home, max(given, default=20_000), max(sizes, default=1_000_000), rounds)
        if _INGEST in parts:
            _measure_ingest(home, rounds)
        if _SCALE in parts:
            _measure_scale(home, sizes or (10_000, 100_000, 1_000_000), rounds, refreshes or 0)
        if _TABLES in parts:
            _measure_tables(home, sizes or (10_000, 100_000, 1_000_000), rounds)
        if _FAR in parts:
            _measure_far(home, rounds)
        if _STEPS in parts:
            environments = CHECKOUT / ".bench-environments" if "cocoindex" in others else None
            _measure_steps(home, max(given, default=1_000), rounds, environments)
        if _QUEUES in parts:
            _measure_queues(home, kinds or tuple(queues.KINDS), messages or (100, 1_000), rounds)
        if not parts or {*parts} - {*_OWN}:
            _measure(home, tree, counts, rounds, parts or _PARTS, spark, others, figures)
    finally:
        processes.command(home, "engine", "stop", "--now")
        if figures.all():
            _console.print(figures.table())
            report.write(figures, scratch / "results.json")
    if save:
        report.write(figures, RESULTS)
        chart.draw(figures.document(), CHART)


def _measure(
    home: Path,
    tree: Tree,
    counts: tuple[int, ...],
    rounds: int,
    parts: tuple[str, ...],
    spark: bool,
    others: tuple[str, ...],
    figures: Figures,
) -> None:
    with Session.builder.config("home", home).create() as session:
        own: list[Contender] = [Raw(home.parent), Volstream(session)]
        every: list[Contender] = [*own, *(OTHERS[name](CHECKOUT / ".bench-environments", home.parent) for name in others)]
        with_spark = [*every, SparkFiles(session, home.parent)] if spark else every
        if "files" in parts or "slow" in parts:
            _say("warming up")
            scenarios.files_round(tree, 200, with_spark, Figures())
            scenarios.files_round(tree, counts[-1], own, Figures())
        for number in range(rounds):
            for count in counts if "files" in parts else ():
                _say(f"round {number + 1}: {count:,} files")
                scenarios.files_round(tree, count, with_spark if count == counts[0] else every, figures)
            if "slow" in parts:
                _say(f"round {number + 1}: {counts[-1]:,} files, slow function")
                scenarios.slow_round(tree, counts[-1], own, figures)
    for number in range(rounds if "cold" in parts else 0):
        _say(f"round {number + 1}: from nothing")
        processes.cold_round(number, home, tree, counts[0], figures, spark=spark)
    if "live" in parts:
        _say("live")
        processes.live(home.parent / "live", tree, counts[0], 3 * rounds, figures)


def _measure_directory(home: Path, sizes: tuple[int, ...], counts: tuple[int, ...], rounds: int, refreshes: int) -> None:
    made, real = Figures(), Figures()
    with Session.builder.config("home", home).create() as session:
        try:
            directories.measure_made(session, home.parent, sorted(sizes), rounds, refreshes, made)
            for count in sorted(counts):
                _say(f"{count:,} files")
                directories.measure_real(session, CHECKOUT / ".bench-files", count, rounds, real)
        finally:
            _console.print(scale.scale_table(made))
            _console.print(real.table())
            report.write(made, home.parent / "directory.json")
            report.write(real, home.parent / "directory-files.json")


def _measure_bucket(
    home: Path, name: str, measure: Callable[[Session, Path, int, Figures], None], sizes: tuple[int, ...]
) -> None:
    figures = Figures()
    with Session.builder.config("home", home).create() as session:
        try:
            for rows in sorted(sizes):
                _say(f"{rows:,} objects")
                measure(session, home.parent, rows, figures)
        finally:
            _console.print(figures.table())
            report.write(figures, home.parent / f"{name}.json")


def _measure_command(scratch: Path, count: int, rounds: int) -> None:
    figures = Figures()
    try:
        directories.measure_command(scratch / "homes", scratch, count, rounds, figures)
    finally:
        _console.print(figures.table())
        report.write(figures, scratch / "cli.json")


def _measure_soak(scratch: Path, refreshes: int) -> None:
    steps: list[soak.PlanStep] = []
    try:
        for step in soak.run(scratch / "soak", refreshes):
            _say(f"{step.refreshes:,} refreshes")
            steps.append(step)
    finally:
        _console.print(soak.table(steps))
    soak.draw(steps, Path(__file__).with_name("soak.png"))
    for name, factor in soak.growth(steps).items():
        _say(f"{name}: {factor:.2f} times what it was a third earlier")


def _measure_growth(home: Path, commits: int) -> None:
    costs: list[growth.Cost] = []
    try:
        with Session(home) as session:
            for cost in growth.run(session, home.parent / "growth", commits):
                _console.print(growth.table([cost]))  # it takes long, and may be stopped
                costs.append(cost)
    finally:
        _console.print(growth.table(costs))


def _measure_many(scratch: Path, numbers: tuple[int, ...], place: str) -> None:
    costs: list[many.Cost] = []
    try:
        for cost in many.run(scratch, sorted(numbers), place):
            _say(f"{cost.number:,} volumes and jobs")
            costs.append(cost)
    finally:
        _console.print(many.table(costs))
    many.draw(costs, scratch / "many.png")


def _measure_burst(home: Path, tree: Tree, count: int, rounds: int) -> None:
    figures = Figures()
    with Session.builder.config("home", home).create() as session:
        contenders: list[Contender] = [Raw(home.parent), Volstream(session)]
        try:
            _say("warming up")
            scenarios.burst_round(tree, 200, contenders, Figures())
            for number in range(rounds):
                _say(f"round {number + 1}: {count:,} files at once")
                scenarios.burst_round(tree, count, contenders, figures)
        finally:
            _console.print(figures.table())
            medians = {(one.scenario, one.contender): one.median for one in figures.all()}
            new, again = (medians.get((name, Volstream.name)) for name in (scenarios.ALL_NEW, scenarios.OVERWRITTEN))
            if new and again:
                _console.print(f"Overwritten at once, to the same files when new: {again / new:.2f}")
            report.write(figures, home.parent / "burst.json")


def _measure_wait(home: Path, count: int, rounds: int) -> None:
    figures = Figures()
    with Session(home) as session:
        try:
            _say("warming up")
            waits.measure(session, home.parent / "waits-warm", 200, 1, Figures())
            waits.measure(session, home.parent / "waits", count, rounds, figures)
        finally:
            _console.print(figures.table())
            report.write(figures, home.parent / "wait.json")


def _measure_steps(home: Path, count: int, rounds: int, environments: Path | None) -> None:
    figures = Figures()
    with Session(home) as session:
        try:
            session.sql("SELECT 1").collect()  # the engine starts
            calls = steps.measure(session, home.parent / "steps", count, rounds, figures, environments)
            for name, numbers in calls.items():
                _say(f"calls of {name}: {', '.join(f'{number:,}' for number in numbers)}")
        finally:
            _console.print(figures.table())
            report.write(figures, home.parent / "steps.json")


def _measure_cluster(home: Path, count: int, rows: int, rounds: int) -> None:
    steps, jobs = Figures(), Figures()
    try:
        with Session(home) as session:
            leader.measure(session, home.parent, rows, steps)
        _console.print(leader.table(steps, rows))
        cluster.measure(home, home.parent / "cluster", count, rounds, jobs)
    finally:
        _console.print(jobs.table())
        if (ratio := cluster.ratio(jobs)) is not None:
            _console.print(f"On the cluster, to the engine: {ratio:.2f}")
        report.write(steps, home.parent / "leader.json")
        report.write(jobs, home.parent / "cluster.json")


def _measure_ingest(home: Path, rounds: int) -> None:
    figures = Figures()
    try:
        ingest.measure(home, rounds, figures)
    finally:
        _console.print(figures.table())
        report.write(figures, home.parent / "ingest.json")


def _measure_scale(home: Path, sizes: tuple[int, ...], rounds: int, refreshes: int) -> None:
    figures = Figures()
    with Session.builder.config("home", home).create() as session:
        try:
            scale.measure(session, home.parent, sorted(sizes), rounds, refreshes, figures)
        finally:
            _console.print(scale.scale_table(figures))
            report.write(figures, home.parent / "scale.json")


def _measure_tables(home: Path, sizes: tuple[int, ...], rounds: int) -> None:
    figures = Figures()
    with Session.builder.config("home", home).create() as session:
        try:
            tables.measure(session, sorted(sizes), rounds, figures)
        finally:
            _console.print(scale.scale_table(figures))
            report.write(figures, home.parent / "tables.json")


def _measure_far(home: Path, rounds: int) -> None:
    figures = Figures()
    with Session.builder.configs({"home": home, "credentials": far.CREDENTIALS}).create() as session:
        try:
            far.measure(session, rounds, figures)
        finally:
            _console.print(figures.table())
            report.write(figures, home.parent / "far.json")


def _measure_queues(home: Path, kinds: tuple[str, ...], counts: tuple[int, ...], rounds: int) -> None:
    figures = Figures()
    with Session.builder.configs({"home": home, "credentials": queues.CREDENTIALS}).create() as session:
        try:
            queues.measure(session, kinds, sorted(counts), rounds, figures)
        finally:
            _console.print(queues.table(figures))
            report.write(figures, home.parent / "queues.json")


def _say(text: str) -> None:
    _console.print(f"[dim]{text} (load {os.getloadavg()[0]:.1f})[/dim]")


if __name__ == "__main__":
    main()
