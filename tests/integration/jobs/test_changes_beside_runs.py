"""Jobs and files are changed at each step of a run, by another session: each file is made by the definition by which it must be,
against a model that knows when a run takes up another definition (docs/guides/jobs.md, "Failures")."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Place, place_in, session_on, settings_in
from tests.interrupts import passing
from volstream.api.session import Session
from volstream.errors import FencedError, InvalidStateError, NotFoundError, VolstreamError
from volstream.spark.session import SparkGateway

#: A file's content names the versions of the code that fail on it, and has a question mark if an expectation refuses it.
_CODE = """
def f(file, mark="m1"):
    content = file.read_text()
    if {version!r} in content:
        raise ValueError("no")
    row = {{"code": {version!r}, "mark": mark, "content": content}}
    return {{**row, "more": 1}} if {version!r} == "v3" else row
"""
_RETURNS = "code STRING, mark STRING, content STRING"
_CODES = {"job.py": "v1", "other.py": "v2", "more.py": "v3"}

#: Functions whose first call is a step of a run; the others are the points at which tests kill processes.
_FUNCTIONS = {
    "begun": "volstream.jobs.runs.run.StreamRun.go",
    "advance": "volstream.catalog.consumptions.Consumptions.advance",
    "postpone": "volstream.catalog.failures.Failures.postpone",
    "begin": "volstream.catalog.consumptions.Consumptions.begin",
    "commit": "volstream.catalog.consumptions.Consumptions.commit",
}

Hold = Callable[[str], None]
Row = tuple[str, str, str, str]


class RefusedError(Exception):
    """A change cannot be made now."""


class AgainError(Exception):
    """The run begins again."""


class GoneError(Exception):
    """The run's job was dropped."""


@dataclass
class Definition:
    """A job.

    Attributes:
        number: another one after the job was replaced.
        revision: grows with each change for which a run begins again.
        least: the smallest path that the job takes.
    """

    number: int = 1
    revision: int = 0
    file: str = "job.py"
    mark: str = "m1"
    least: str = ""
    expects: bool = False
    retries: int = 1
    pause_after: int = 0


@dataclass
class Failed:
    content: str
    attempts: int
    state: str
    unexpected: bool
    due: bool = False

    def try_again(self) -> None:
        if self.state != "skipped":
            self.state, self.due = "retrying", True


@dataclass
class Planned:
    """The files of an open plan with their contents, None for removals, and the state of the volume at its end, None if the
    stream stays where it is."""

    files: list[tuple[str, str | None]]
    until: State | None


@dataclass(frozen=True)
class State:
    """A volume as of a refresh."""

    number: int
    files: Mapping[str, str]


@dataclass
class Model:
    """A volume, its job, and the job's table in plain Python. A batch has one file.

    Attributes:
        delivered: None: the stream begins with all files.
        planned: the files of a plan that is not open yet.
        attempt: one is open.
        overtaken: paths that changed while their former version was planned, for which a call may have begun ahead.
    """

    append: bool = False
    codes: dict[str, str] = field(default_factory=lambda: dict(_CODES))
    state: State = State(0, {})
    delivered: State | None = None
    job: Definition | None = field(default_factory=Definition)
    plan: Planned | None = None
    planned: Sequence[tuple[str, str | None]] = ()
    attempt: bool = False
    running: bool = False
    strays: bool = False
    paused: bool = False
    failed_batches: int = 0
    rows: list[Row] = field(default_factory=list)
    overtaken: set[str] = field(default_factory=set)
    failed: dict[str, Failed] = field(default_factory=dict)

    @property
    def unsure(self) -> set[str]:
        """The files whose newest version the stream has not delivered yet."""
        newest = self.delivered is not None and self.delivered.number == self.state.number
        return set() if newest else self.overtaken

    def run(self, hold: Hold = lambda _: None) -> None:
        """Raises GoneError."""
        if self.job is None or self.paused:
            return None
        mine, self.running = self.job, True
        try:
            while True:
                try:
                    hold("begun")
                    return self._go(mine, self.codes[mine.file], hold)
                except AgainError:
                    if self.job is None or self.job.number != mine.number:
                        raise GoneError from None
                    mine = self.job
                    if self.paused:
                        return None
        finally:
            self.running, self.planned = False, ()

    def _go(self, mine: Definition, code: str, hold: Hold) -> None:
        if self.plan is not None and self._process(self.plan, mine, code, hold):
            return
        if self.strays:
            removed = sorted({path for path, *_ in self.rows if path not in self.state.files or path < mine.least})
            if removed and not self.append and self._open(Planned([(path, None) for path in removed], None), mine, code, hold):
                return
            self._check(mine)
            self.strays = False
        while True:
            initial = self.delivered is None
            worked, ended = self._follow(mine, code, hold)
            if not ended:
                retried, ended = self._retry(mine, code, hold)
                worked |= retried
            if ended or not (worked and initial):
                return

    def _follow(self, mine: Definition, code: str, hold: Hold) -> tuple[bool, bool]:
        """Whether it did anything, and whether the run ends."""
        before, now = self.delivered, self.state
        if before is not None and before.number == now.number:
            return False, False
        old, new = before.files if before is not None else {}, now.files
        changed = sorted(path for path in {*old, *new} if old.get(path) != new.get(path))
        files = [(path, new.get(path) if path >= mine.least else None) for path in changed if path in old or path >= mine.least]
        self.planned = files
        hold("plan.written")
        if files:
            return True, self._open(Planned(files, now), mine, code, hold)
        hold("advance")
        self._check(mine)
        self.delivered = now
        return True, False

    def _retry(self, mine: Definition, code: str, hold: Hold) -> tuple[bool, bool]:
        due = sorted(path for path, one in self.failed.items() if one.due)
        if not due:
            return False, False
        for path in [path for path in due if path < mine.least and path in self.state.files]:
            due.remove(path)
            del self.failed[path]
        if not due:
            return True, False
        same = [path for path in due if self.state.files.get(path) == self.failed[path].content]
        files: list[tuple[str, str | None]] = [(path, self.failed[path].content) for path in same]
        self.planned = files
        hold("postpone")
        self._check(mine)
        for path in {*due} - {*same}:
            self.failed[path].state, self.failed[path].due = "waiting", False
        return True, bool(files) and self._open(Planned(files, None), mine, code, hold)

    def _open(self, plan: Planned, mine: Definition, code: str, hold: Hold) -> bool:
        self._check(mine)
        self.plan = plan
        hold("plan.opened")
        return self._process(plan, mine, code, hold)

    def _process(self, plan: Planned, mine: Definition, code: str, hold: Hold) -> bool:
        """Whether the run ends."""
        while plan.files:
            path, content = plan.files[0]
            hold("begin")
            self._check(mine)
            self.attempt = True
            hold("batch.intent")
            unexpected = mine.expects and "?" in (content or "")
            failed = content is not None and (code in content or unexpected)
            hold("batch.staged")
            if not failed and not self.append:
                self.rows = [row for row in self.rows if row[0] != path]
            if not failed and content is not None:
                self.rows.append((path, code, mine.mark, content))
            hold("batch.written")
            hold("commit")
            self.attempt = False
            self._commit(plan, mine, Failed(content or "", 1, "", unexpected) if failed else None)
            hold("batch.committed")
            if self.job is None or self.job.number != mine.number:
                raise GoneError
            if self.paused:
                return True
            self._check(mine)
        return False

    def _commit(self, plan: Planned, mine: Definition, failed: Failed | None) -> None:
        assert self.job is not None, "it cannot be dropped while an attempt is open"
        path, content = plan.files.pop(0)
        earlier = self.failed.pop(path, None)
        is_current = self.job.revision == mine.revision
        if failed is not None:
            same = earlier is not None and earlier.content == content
            if same and earlier is not None:
                failed.attempts += earlier.attempts
            failed.state = "retrying" if failed.attempts <= mine.retries else "quarantined"
            if not is_current:
                failed.attempts, failed.state, failed.due = 0, "retrying", True
            self.failed[path] = earlier if same and earlier is not None and earlier.state == "skipped" else failed
        if is_current and plan.until is not None and content is not None:
            self.failed_batches = self.failed_batches + 1 if failed else 0
            if self.job.pause_after and self.failed_batches >= self.job.pause_after:
                self.paused, self.failed_batches = True, 0
        if not plan.files:
            self.plan, self.delivered = None, plan.until or self.delivered

    def _check(self, mine: Definition) -> None:
        if self.job is None or self.job.revision != mine.revision or self.job.number != mine.number:
            raise AgainError

    def put(self, files: Mapping[str, str | None]) -> None:
        """Changes files, and refreshes the volume."""
        now: dict[str, str | None] = {**self.state.files, **files}
        present = {path: content for path, content in now.items() if content is not None}
        if present != self.state.files:
            self.state = State(self.state.number + 1, present)
        planned = self.planned if self.plan is None else self.plan.files
        self.overtaken |= {*files} & {path for path, _ in planned}

    def alter(self, **changes: object) -> None:
        """Raises RefusedError, as all changes do."""
        if self.job is None or ("least" in changes and self.plan is not None):
            raise RefusedError
        before, self.job = self.job, replace(self.job, revision=self.job.revision + 1, **changes)  # type: ignore[arg-type]
        for one in self.failed.values():
            excluded = before.least != self.job.least and one.state != "waiting"
            if excluded or (before.expects != self.job.expects and one.unexpected):
                one.try_again()

    def retry(self) -> None:
        self.alter()
        for one in self.failed.values():
            one.try_again()

    def skip(self, path: str) -> None:
        if self.job is None or path not in self.failed:
            raise RefusedError
        self.failed[path].state, self.failed[path].due = "skipped", False

    def pause(self, *paused: bool) -> None:
        if self.job is None:
            raise RefusedError
        self.paused, self.failed_batches = paused[-1], 0

    def reset(self, to: State) -> None:
        if self.job is None or self.plan is not None:
            raise RefusedError
        self.alter()
        self.delivered, self.strays = to, True

    def drop(self) -> None:
        if self.job is None or self.attempt:
            raise RefusedError
        self.job, self.plan, self.failed, self.paused, self.failed_batches = None, None, {}, False, 0

    def create(self, number: int) -> None:
        """Also in place of the job that there is."""
        if self.attempt or (self.append and any(self.state.files.get(row[0]) == row[3] for row in self.rows)):
            raise RefusedError
        if self.job is not None:
            self.drop()
        self.job, self.delivered, self.strays = Definition(number, file="other.py"), None, not self.append

    def drop_and_create(self, number: int) -> None:
        if self.job is not None:
            self.drop()
        self.create(number)

    def another_run(self) -> None:
        if self.running or self.job is None or self.paused:
            raise RefusedError
        self.run()


class Beside:
    """A place and its model, to which the same is done. Changes come from another session, in another thread."""

    def __init__(self, place: Place, other: Session, *, append: bool = False) -> None:
        self.place = place
        self.other = other
        self.model = Model(append)
        self.log: list[str] = []
        self._numbers = iter(range(2, 1000))
        self._code = place.folder.parent / "code"
        self._code.mkdir()
        for file, version in _CODES.items():
            (self._code / file).write_text(_CODE.format(version=version))
        self._create("job.py")
        self.base = self.model.state, 0

    def _create(self, file: str, **options: object) -> None:
        fixed: dict[str, object] = {"volume": "v", "returns": _RETURNS, "max_files": 1, "retries": 1, "pause_after": 0}
        if self.model.append:
            fixed["write"] = "append"
        self.other.jobs.create("j", f"{self._code / file}:f", "t", **fixed, **options)  # type: ignore[arg-type]

    def _alter(self, **changes: object) -> None:
        self.other.jobs.alter("j", **changes)  # type: ignore[arg-type]  # of one option each

    def put(self, **contents: str | None) -> None:
        """Writes files, or deletes them, and refreshes."""
        files = {f"{name}.txt": content for name, content in contents.items()}
        self._put(files)
        self.model.put(files)

    def _put(self, files: Mapping[str, str | None]) -> None:
        for path, content in files.items():
            if content is not None:
                self.place.put(path, content)
            else:
                (self.place.folder / path).unlink(missing_ok=True)
        self.other.volumes.refresh("v", accept_removals=True)

    def mark_base(self) -> None:
        """Has resets go back to the present offset."""
        offset = self.other.streams.get("j_stream").offset
        assert offset is not None
        assert self.model.delivered is not None
        self.base = self.model.delivered, offset

    def _columns(self) -> None:
        self._alter(function=f"{self._code / 'more.py'}:f", returns=f"{_RETURNS}, more INT")

    def _drop_and_create(self) -> None:
        self.other.jobs.drop("j", if_exists=True)
        self._create("other.py")

    def do(self, change: str) -> None:
        """Makes a change in both."""
        self._model(*self._make(change))

    def _make(self, change: str) -> tuple[str, Callable[[], object], VolstreamError | None]:
        real, modelled = self._ways(change)
        try:
            real()
        except VolstreamError as error:
            return change, modelled, error
        return change, modelled, None

    def _model(self, change: str, modelled: Callable[[], object], refused: VolstreamError | None) -> None:
        """Makes a change in the model, which refuses it as the job did, or does not."""
        self.log.append(change)
        if change.startswith("skip") and change.split()[1] in self.model.unsure:
            return
        try:
            modelled()
        except RefusedError:
            assert refused is not None, f"{self.log}: {change} should be refused"
        else:
            assert refused is None, f"{self.log}: {change} was refused: {refused}"

    def _ways(self, change: str) -> tuple[Callable[[], object], Callable[[], object]]:
        jobs, model, number = self.other.jobs, self.model, next(self._numbers)
        state, offset = self.base
        match change.split():
            case ["function", file]:
                return partial(self._alter, function=f"{self._code / file}:f"), partial(model.alter, file=file)
            case ["columns"]:
                return self._columns, partial(model.alter, file="more.py")
            case ["arguments"]:
                return partial(self._alter, arguments={"mark": f"m{number}"}), partial(model.alter, mark=f"m{number}")
            case ["where", least]:
                return partial(self._alter, where=f"relative_path >= '{least}'"), partial(model.alter, least=least)
            case ["expect", count]:
                expected = ["content NOT LIKE '%?%'"] * int(count)
                return partial(self._alter, expect=expected), partial(model.alter, expects=bool(expected))
            case ["retries", count]:
                return partial(self._alter, retries=int(count)), partial(model.alter, retries=int(count))
            case ["pause_after", count]:
                return partial(self._alter, pause_after=int(count)), partial(model.alter, pause_after=int(count))
            case ["max_files"]:
                return partial(self._alter, max_files=2), model.alter
            case ["edit", version]:
                text = _CODE.format(version=version)
                return partial((self._code / "job.py").write_text, text), partial(model.codes.update, {"job.py": version})
            case ["pause"]:
                return partial(jobs.pause, "j"), partial(model.pause, True)
            case ["resume"]:
                return partial(jobs.resume, "j"), partial(model.pause, False)
            case ["retry"]:
                return partial(jobs.retry, "j"), model.retry
            case ["skip", path]:
                return partial(jobs.skip, "j", [path]), partial(model.skip, path)
            case ["reset"]:
                return partial(self.other.streams.reset, "j_stream", to_version=offset), partial(model.reset, state)
            case ["refresh", path, *wrong]:
                files = {path: f"{path[0]}{number}{''.join(wrong)}", f"n{number}.txt": f"n{number}"}
                return partial(self._put, files), partial(model.put, files)
            case ["delete", path]:
                return partial(self._put, {path: None}), partial(model.put, {path: None})
            case ["run"]:
                return partial(jobs.run, "j"), model.another_run
            case ["drop"]:
                return partial(jobs.drop, "j"), model.drop
            case ["create"]:
                return self._drop_and_create, partial(model.drop_and_create, number)
            case ["replace"]:
                return partial(self._create, "other.py", or_replace=True), partial(model.create, number)
        raise AssertionError(change)

    def run(self, holds: Mapping[tuple[str, int], Sequence[str]], *, all_reached: bool = True) -> None:
        """Runs the job, and makes changes where the run passes a step for the n-th time. Then both must be equal."""
        self.log.append(f"run {holds}:")
        made: dict[tuple[str, int], list[Any]] = {}

        def act(at: tuple[str, int]) -> None:
            made[at] = [beside.submit(self._make, change).result(100) for change in holds[at]]

        with ThreadPoolExecutor(1) as beside, ExitStack() as stack:
            for step, number in holds:
                at = _FUNCTIONS.get(step, step)
                stack.enter_context(passing(at, partial(act, (step, number)), number, must=all_reached))
            ended = self._run()
        passed: Counter[str] = Counter()

        def hold(step: str) -> None:
            passed[step] += 1
            at = step, passed[step]
            assert at not in holds or at in made, f"{self.log}: only the model reached {at}"
            for one in made.pop(at, ()):
                self._model(*one)

        gone = False
        try:
            self.model.run(hold)
        except GoneError:
            gone = True
        assert not made, f"{self.log}: the model did not reach {[*made]}"
        assert gone or not isinstance(ended, FencedError), f"{self.log}: {ended}"
        self.check()

    def _run(self) -> VolstreamError | None:
        try:
            self.place.run()
        except (FencedError, InvalidStateError, NotFoundError) as error:  # dropped meanwhile; paused, or dropped before
            return error
        return None

    def check(self) -> None:
        """The table, the failures, the job and its offset are what the model says."""
        model, session = self.model, self.other
        case = "\n".join(self.log)
        files = model.state.files
        unsure = model.unsure

        def sure(rows: Iterable[Row]) -> list[Row]:
            return sorted(
                row for row in rows if row[0] not in model.overtaken or (row[0] not in unsure and row[3] == files.get(row[0]))
            )

        assert sure(self.place.table("_file_path, code, mark, content")) == sure(model.rows), case
        if model.job is None:
            return
        job = session.jobs.get("j")
        assert (job.paused is not None) == model.paused, case
        found = {one.path: (str(one.state), one.attempts) for one in session.jobs.failures("j") if one.path not in unsure}
        assert found == {path: (one.state, one.attempts) for path, one in model.failed.items() if path not in unsure}, case
        assert (session.home.catalog.consumptions.open_plan(job.stream_id) is not None) == (model.plan is not None), case
        moved = model.delivered is not None and model.delivered.number == model.state.number
        assert session.streams.has_data("j_stream") != moved, case

    def finish(self) -> None:
        """Runs the job until there is nothing left to do."""
        for _ in range(5):
            if self.model.paused:
                self.do("resume")
            self.run({})
        if self.model.job is not None:
            assert not self.other.jobs.runner(self.other.jobs.get("j")).has_work(), self.log


@contextmanager
def _beside(folder: Path, gateway: SparkGateway, **options: bool) -> Iterator[Beside]:
    settings = settings_in(folder)
    with place_in(folder, settings, gateway) as place, session_on(gateway, settings) as other:
        yield Beside(place, other, **options)


def _changed_files(beside: Beside) -> None:
    """After a run: a file that failed is due again, and others were removed, changed and added."""
    beside.put(a="a", b="b!v1", c="c")
    beside.run({})
    beside.mark_base()
    beside.put(a=None, c="c2?", d="d!v1", e="e!v1v2v3v4", f="f")
    beside.do("retry")


def _unwanted_files(beside: Beside) -> None:
    """The condition excludes all files."""
    beside.put(a="a")
    beside.run({})
    beside.mark_base()
    beside.do("where x")
    beside.put(b="b", c="c")


_SCENARIOS = {"changed files": _changed_files, "unwanted files": _unwanted_files}

#: The fifth file of the first plan fails whatever the code, the next plan has the one that is tried again.
_POINTS = {
    "changed files": [
        *(
            ("begun", 1),
            ("plan.written", 1),
            ("plan.opened", 1),
            ("begin", 1),
            ("commit", 1),
            ("postpone", 1),
            ("plan.opened", 2),
        ),
        *((point, number) for point in ("batch.intent", "batch.staged", "batch.written", "batch.committed") for number in (3, 6)),
    ],
    "unwanted files": [("begun", 1), ("plan.written", 1), ("advance", 1)],
}

_CHANGES = [
    *("function other.py", "columns", "arguments", "where c", "expect 1", "retries 0", "pause_after 1", "max_files"),
    *("edit v4", "edit v4+retry", "pause", "pause+resume", "retry", "skip b.txt", "skip d.txt", "skip b.txt+function other.py"),
    *("reset", "refresh c.txt", "refresh e.txt", "delete f.txt", "run", "drop", "create", "replace"),
]

#: Tried in every run of the tests.
_QUICK = {
    ("changed files", ("batch.written", 3), "function other.py", "upsert"),
    ("changed files", ("plan.written", 1), "reset", "append"),
    ("changed files", ("begin", 1), "arguments", "append"),
    ("changed files", ("batch.intent", 6), "skip b.txt", "upsert"),
    ("unwanted files", ("advance", 1), "where c", "upsert"),
}

_CELLS = [
    pytest.param(
        *cell, marks=() if cell in _QUICK else pytest.mark.long, id=f"{cell[0]}-{cell[1][0]} {cell[1][1]}-{cell[2]}-{cell[3]}"
    )
    for scenario in _SCENARIOS
    for cell in product([scenario], _POINTS[scenario], _CHANGES, ["upsert", "append"])
]


@pytest.mark.parametrize(("scenario", "at", "changes", "write"), _CELLS)
def test_a_change_beside_a_run(
    tmp_path: Path, gateway: SparkGateway, scenario: str, at: tuple[str, int], changes: str, write: str
) -> None:
    with _beside(tmp_path, gateway, append=write == "append") as beside:
        _SCENARIOS[scenario](beside)
        beside.run({at: changes.split("+")})
        beside.finish()


_STEPS = ("plan.written", "plan.opened", "batch.intent", "batch.staged", "batch.written", "batch.committed")
_PATHS = [f"{name}.txt" for name in "abcdef"]


class History:
    """A random history: files and job change between runs and beside them. Either files change that a run has before it, or the
    job pauses itself: whether the former version of such a file has failed depends on what was called ahead."""

    def __init__(self, beside: Beside, pick: random.Random) -> None:
        self.beside = beside
        self.pick = pick
        self.pauses = pick.random() < 0.3

    def changes(self) -> list[str]:
        path = self.pick.choice(_PATHS)
        ways = [
            *(f"function {self.pick.choice(['job.py', 'other.py'])}", "arguments", f"where {self.pick.choice('acx')}"),
            *(f"expect {self.pick.randrange(2)}", f"retries {self.pick.randrange(3)}", f"edit {self.pick.choice(['v1', 'v4'])}"),
            *("pause", "pause+resume", "resume", "retry", "edit v4+retry", f"skip {path}", "reset", "run", "replace", "create"),
        ]
        if self.pauses:
            ways += ["pause_after 1", "pause_after 2", "pause_after 0"]
        else:
            ways += [self.file(path), self.file(path), f"delete {path}"]
        chosen: str = self.pick.choice(ways)
        return chosen.split("+")

    def file(self, path: str) -> str:
        return f"refresh {path} {self.pick.choice(['', '', '!v1', '!v2', '!v4', '!v1v2v4', '?'])}"

    def play(self) -> None:
        beside, pick = self.beside, self.pick
        beside.put(a="a", b="b!v1", c="c?", d="d")
        beside.run({})
        beside.mark_base()
        for _ in range(4):
            for path in pick.sample(_PATHS, pick.randrange(4)):
                beside.do(self.file(path) if pick.random() < 0.8 else f"delete {path}")
            if pick.random() < 0.5:
                beside.do(self.changes()[0])
            if beside.model.job is None:
                beside.do("create")
            holds = {(pick.choice(_STEPS), pick.randrange(1, 6)): self.changes() for _ in range(pick.randrange(4))}
            beside.run(holds, all_reached=False)
        beside.finish()


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "histories"),
    [pytest.param(1000, 10, marks=pytest.mark.timeout(600)), pytest.param(2000, 300, marks=pytest.mark.timeout(7200))],
    ids=["some", "many"],
)
def test_random_changes_beside_runs(tmp_path: Path, gateway: SparkGateway, first: int, histories: int) -> None:
    for seed in range(first, first + histories):
        pick = random.Random(seed)
        (tmp_path / str(seed)).mkdir()
        with _beside(tmp_path / str(seed), gateway, append=pick.random() < 0.4) as beside:
            beside.log.append(f"seed {seed}")
            History(beside, pick).play()
