"""A storm over one home: makes it, does the steps of its schedule, and waits until what the home says is true again."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

import psutil

from tests.buckets import KEYS, Cloud, clouds
from tests.disks import Disk, mounted
from tests.e2e.homes import COMMAND_SECONDS, VOLSTREAM, Daemon, Home, patiently
from tests.postgres import served
from tests.proxies import Mood, Proxy, before
from tests.storm import truth
from tests.storm.bucket import BucketFiles
from tests.storm.clock import Clock
from tests.storm.files import ARCHIVE, BAD, DEADLY, FLAKY, Files, Folder, Landing
from tests.storm.power import Power
from tests.storm.preload import Preload
from tests.storm.schedule import OUTPUT_POINTS, POINTS, Aim, Deed, Kind, PlanStep, steps
from tests.storm.truth import RowRequirements
from tests.storm.victims import MARK, Victims

#: In the storm's folder: keys of sets for which a function was called, though they were not complete.
INCOMPLETE = "incomplete.txt"

#: In the storm's folder: each word for which the step was called.
COMPUTED = "computed.txt"

#: One function for each job: what they return depends on the text and the code alone, so that rows may follow moved files.
_FUNCTIONS = f'''
import os
import random
import time
from dataclasses import dataclass

import volstream

VERSION = 0


@dataclass
class Text:
    text: str
    code: int = VERSION


@dataclass
class Copy:
    text: str
    made: volstream.OutputFile
    code: int = VERSION


def read(file) -> Text:
    text = file.read_text()
    sort = text.split()[0]
    if sort == "{BAD}":
        raise ValueError("this one is bad")
    if sort == "{FLAKY}" and time.time() - file.last_modified_time.timestamp() < 3:
        raise OSError("not now")
    time.sleep(random.choices((0, 0.02, 4), (150, 50, 1))[0])  # beside a slow one the next batch begins
    return Text(text)


def copy(file) -> Copy:
    text = read(file).text
    return Copy(text, volstream.OutputFile(file.relative_path, data=text.encode()))


def again(file) -> Text:
    return read(file)


def whole(files: list, log: str) -> Text:
    if len(files) < 2:
        with open(log, "a") as incomplete:
            print(files.key, file=incomplete)
    return Text("\\n".join(f"{{file.relative_path}} {{read(file).text}}" for file in files))


@volstream.step
def word_of(word: str, log: str) -> str:
    with open(log, "a") as computed:
        print(word, file=computed)
    return word


def stepped(file, log: str) -> Text:
    words = [word_of(word, log) for word in file.read_text().split(" ")]
    read(file)
    return Text(" ".join(words))


def fragile(file) -> Text:
    if file.read_text().split()[0] == "{DEADLY}":
        os._exit(3)
    return read(file)
'''

#: Files of a batch of the job with a step.
_STEPPED = 20

#: Many times what a home needs on a busy machine.
_TRUE_SECONDS = 300.0

#: Who is hit if there is no process of a kind.
_INSTEAD = {Kind.CHILD: Kind.WORKER}

#: Commands at once: two cores are to do something else, too.
_MAX_COMMANDS = 3

#: A command that waits for an engine does so for ``engine_start_seconds``, 120, and its engine may be frozen meanwhile.
_COMMAND_ENDS_SECONDS = 200.0

_SETTINGS = {
    "VOLSTREAM_LEASE_SECONDS": "2s",
    "VOLSTREAM_RETRY_MAX_SECONDS": "3s",
    "VOLSTREAM_LISTING_SECONDS": "20s",
    "VOLSTREAM_SHUTDOWN_SECONDS": "10s",
}

#: Files of each of many volumes to begin with; at a step, one in so many of these volumes changes.
_FEW, _PART = 6, 10

#: Of a file that fails when it is new: the last one comes when it is not new any more.
_RETRIES = "6"


class UntrueError(AssertionError):
    """An inconsistency of a home after a storm."""


@dataclass(frozen=True)
class Plan:
    """The parameters of a storm.

    Attributes:
        kills: processes to kill.
        files: of each volume, to begin with.
        batch: files of a batch, of the job that has most of the work.
        jobs: 1; 2, with one whose files are run in children; or 4, on two volumes.
        longest_pause: seconds between two steps.
        lull: seconds after which a lull ends even where nothing works.
        store: of the last volume: ``local``, or the scheme of a cloud.
        often: what is done at every third step; empty: nothing is preferred.
        outputs: one more job makes files in another volume.
        sets: one more job takes the files of a folder together, if they are two or more.
        landing: two more jobs take the files of volumes of their own away, one into an archive; on a disk of its own that may be
            full, if the seed is odd.
        changes: jobs are altered, paused and replaced meanwhile.
        steps: one more job's function has a step.
        many: so many more volumes with a few files and a job each, all made by one ``apply``.
    """

    seed: int
    kills: int
    catalog: str = "sqlite"
    files: int = 60
    batch: int = 50
    jobs: int = 4
    longest_pause: float = 0.9
    lull: float = 12.0
    store: str = "local"
    often: str = ""
    outputs: bool = False
    sets: bool = False
    landing: bool = False
    changes: bool = False
    steps: bool = False
    many: int = 0


@dataclass
class Report:
    """How a storm went.

    Attributes:
        killed: processes, by kind; ``point``: those that killed themselves at a fault point.
        true_seconds: from the last kill to the first look at which all was true.
    """

    killed: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    true_seconds: float = 0.0

    @property
    def kills(self) -> int:
        return sum(self.killed.values())


@dataclass
class _Command:
    words: tuple[str, ...]
    process: subprocess.Popen[bytes]
    output: Path
    began: float


class Storm:
    """One storm.

    Args:
        folder: empty; gets the home, the files, ``storm.log`` and what was printed.
        say: called with each line for people.
    """

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.report = Report()
        self._say = say
        self._folder = folder
        self._began = time.monotonic()
        self._temporary = folder / "tmp"
        self._outputs = folder / "outputs"
        self._victims = Victims(uuid.uuid4().hex)
        self._preload = Preload(folder)
        self._clock = Clock(folder)
        self._power = Power(folder / "home", folder / "synced", self._preload.variables)
        variables = {
            MARK: self._victims.mark,
            "TMPDIR": str(self._temporary),
            "PYTHONPATH": os.pathsep.join(
                [str(Path(__file__).with_name("early")), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
            ),
            **_SETTINGS,
            **self._preload.variables,
            **self._clock.variables,
            **self._power.variables,
            **(KEYS if plan.store != "local" else {}),
        }
        self.home = Home(folder, seconds=COMMAND_SECONDS * 2, variables=variables)
        self._variables = variables
        self._daemon: Daemon | None = None
        self._fault = ""  # where the daemon kills itself
        self._stops = 0
        self._troubled_until = 0.0
        self._commands: list[_Command] = []
        self._frozen: list[tuple[float, psutil.Process]] = []
        self._last_kill = time.monotonic()
        self._later: list[threading.Thread] = []
        self._proxies: Mapping[str, Proxy] = {}
        self._log: TextIO = (folder / "storm.log").open("w", encoding="utf-8", buffering=1)
        self.jobs: list[RowRequirements] = []
        self._many: list[RowRequirements] = []
        self._landings: dict[str, Landing] = {}
        self._disks: list[Disk] = []  # that are full for a while
        self._created: dict[str, tuple[str, ...]] = {}  # the commands that created jobs
        self._code = 0

    def run(self) -> Report:
        """The whole of it. Raises UntrueError."""
        with ExitStack() as stack:
            stack.callback(self._log.close)
            stack.callback(self._end_all)
            self._temporary.mkdir()
            self.home.path.mkdir(mode=0o700)
            self._disk = stack.enter_context(mounted(self.home.path, "1g"))
            self._disks = [self._disk]
            if not self._preload.why_not:
                self._power.begin()
            self._postgres = stack.enter_context(served()) if self.plan.catalog == "postgres" else None
            if self._postgres is not None:
                self._variables["VOLSTREAM_CATALOG_URL"] = self._postgres.new_database()
            self._make(stack)
            self._blow()
            self._settle()
            self.report.seconds = time.monotonic() - self._began
        return self.report

    def differences(self) -> list[str]:
        """What is not true of the home at this moment; of what takes longer to ask, only where the tables are true."""
        jobs = [*self.jobs, *self._many]
        found = [line for job in jobs for line in truth.of_table(self.home, job)]
        if self.plan.outputs:
            found += truth.of_outputs(self.home, "copies", self._outputs)
        if self.plan.sets:
            found += truth.of_sets(self.home, "together", self._files["a"], self._folder / INCOMPLETE)
        if self.plan.steps:
            found += truth.of_steps(self.home, "stepped", self._files["a"], self._folder / COMPUTED, self.report.kills)
        for job, landing in self._landings.items():
            found += truth.of_landing(self.home, job, landing, archives=job == "archived")
        return found or [*truth.of_failures(self.home, jobs)]

    # Making

    def _make(self, stack: ExitStack) -> None:
        plan, home = self.plan, self.home
        (self._folder / "functions.py").write_text(_FUNCTIONS, encoding="utf-8")
        volumes = ("a", "b") if plan.jobs > 2 else ("a",)
        last = volumes[-1]
        in_cloud = () if plan.store == "local" else self._enter_cloud(stack)
        self._files: dict[str, Files] = {}
        for name in volumes:
            seed, options = f"{plan.seed} {name}", in_cloud if name == last else ()
            files = BucketFiles(self._cloud, seed) if options else Folder(self._folder / "files" / name, seed)
            files.fill(plan.files)
            home.ok("create-volume", name, files.location, "--max-removals", "all", *options)
            self._files[name] = files
        for job, volume, function, options in (
            ("latest", "a", "read", ("--on-change", "--retries", _RETRIES, "--max-files", str(plan.batch))),
            ("apart", last, "fragile", ("--every", "2s", "--isolate", "--retries", "2", "--max-files", "25")),
            ("each", "a", "read", ("--on-change", "--write", "append", "--retries", _RETRIES, "--max-files", "20")),
            ("moved", last, "read", ("--on-move", "rekey", "--retries", _RETRIES, "--max-files", "30", "--order", "newest")),
        )[: plan.jobs]:
            self._job(job, volume, function, *options)
        if plan.outputs:
            self._outputs.mkdir()
            home.ok("create-volume", "made", str(self._outputs), "--max-removals", "all")
            options = ("--on-change", "--retries", _RETRIES, "--max-files", "30")
            self._job("copies", "a", "copy", "--outputs-to", "made", "--outputs-prefix", "copies", *options)
        if plan.sets:
            options = ("--group-by", "folder", "--group-complete", "count(*) >= 2", "--arg", f"log={self._folder / INCOMPLETE}")
            self._create("together", "a", "whole", "--on-change", "--retries", _RETRIES, *options)
        if plan.steps:
            options = ("--on-change", "--on-move", "rekey", "--retries", _RETRIES, "--max-files", str(_STEPPED))
            self._job("stepped", "a", "stepped", "--arg", f"log={self._folder / COMPUTED}", *options)
        for job, after_load in (("archived", f"archive:{ARCHIVE}"), ("deleted", "delete")) if plan.landing else ():
            self._landings[job] = landing = Landing(self._folder / "files" / job, f"{plan.seed} {job}")
            landing.fill(plan.files)
            if job == "archived" and plan.seed % 2:
                (landing.path / ARCHIVE).mkdir()
                self._disks.append(stack.enter_context(mounted(landing.path / ARCHIVE, "64m")))
            home.ok("create-volume", job, landing.location, "--max-removals", "all")
            options = ("--on-change", "--write", "append", "--after-load", after_load, "--retries", _RETRIES, "--max-files", "20")
            self._create(job, job, "read", *options)
        if plan.many:
            self._make_many()
        self._note(f"made {plan}; a disk of its own: {self._disk.why_not or True}")
        self._note(f"a clock and power of its own: {self._preload.why_not or True}")

    def _make_many(self) -> None:
        lines: list[str] = []
        for number in range(self.plan.many):
            name = f"m{number}"
            files = Folder(self._folder / "files" / name, f"{self.plan.seed} {name}")
            files.fill(_FEW)
            self._many.append(RowRequirements(name, name, files, (BAD,)))
            lines += [f"[volumes.{name}]", f'location = "{files.location}"', 'max_removals = "all"']
            lines += [f"[jobs.{name}]", f'volume = "{name}"', 'function = "functions.py:read"', f'into = "{name}"']
            lines += ["on_change = true", f"retries = {_RETRIES}", "pause_after = 0"]
        pipeline = self._folder / "many.toml"
        pipeline.write_text("\n".join(lines), encoding="utf-8")
        self.home.ok("apply", str(pipeline))

    def _changing(self, number: int) -> Mapping[str, Files]:
        """The files that change at a step: of many volumes, those of every tenth."""
        some = self._many[number % _PART :: _PART]
        return {**self._files, **self._landings, **{job.volume: job.files for job in some}}

    def _enter_cloud(self, stack: ExitStack) -> Sequence[str]:
        """Starts the cloud of the plan, behind proxies; the options of a volume in it."""
        kind = self.plan.store
        self._cloud: Cloud = stack.enter_context(clouds([kind]))[kind]
        self._proxies = {url: stack.enter_context(before(url)) for url in {self._cloud.endpoint, self._cloud.messages}}
        seen = replace(
            self._cloud, endpoint=self._proxies[self._cloud.endpoint].url, messages=self._proxies[self._cloud.messages].url
        )
        self.home.ok("create-connection", "cloud", *seen.connection)
        return ("--connection", "cloud", "--queue-type", seen.words.queue_type, "--queue-name", seen.queue)

    def _job(self, job: str, volume: str, function: str, *options: str) -> None:
        self._create(job, volume, function, *options)
        fails = (BAD, DEADLY) if function == "fragile" else (BAD,)
        self.jobs.append(RowRequirements(job, volume, self._files[volume], fails, appends="append" in options))

    def _create(self, job: str, volume: str, function: str, *options: str) -> None:
        place = ("--volume", volume, "--function", f"functions.py:{function}", "--into", job)
        self._created[job] = ("create-job", job, *place, "--pause-after", "0", *options)
        self.home.ok(*self._created[job])

    # Blowing

    def _blow(self) -> None:
        often = Deed(self.plan.often) if self.plan.often else None
        points = (*POINTS, *OUTPUT_POINTS * 3) if self.plan.outputs or self.plan.landing else POINTS
        for step in steps(self.plan.seed, longest_pause=self.plan.longest_pause, often=often, points=points):
            self._keep_daemon(step.point)
            time.sleep(step.pause)
            for volume, files in self._changing(step.number).items():
                for _ in range(step.changes):
                    self._note(f"{step.number} {volume}: {files.change()}")
            self._do(step)
            self._look_at_commands()
            self._thaw(time.monotonic())
            self.report.steps = step.number
            if self.report.kills >= self.plan.kills:
                return

    def _do(self, step: PlanStep) -> None:
        self._note(f"{step.number} {step.deed} {step.point}")
        match step.deed:
            case Deed.POWER:
                self._cut_power()
                self._lose_unsynced()
            case Deed.FREEZE:
                self._freeze(step)
            case Deed.COMMAND:
                self._command(step)
            case Deed.STOP:
                self._stop_daemon()
            case Deed.LULL:
                self._lull()
            case Deed.EDIT:
                self._edit()
            case Deed.CATALOG if self._postgres is not None:
                self._restart_catalog(step.seconds)
            case Deed.DISK if not self._disk.why_not:
                self._fill_disk(step)
            case Deed.SEALED if not self._disk.why_not:
                self._seal_disk(step)
            case Deed.CLOCK if not self._preload.why_not:
                self._move_clock(step)
            case Deed.CLOUD if self._proxies:
                self._spoil_cloud(step)
            case _:
                for aim in step.aims:
                    for one in (aim, *(Aim(kind, aim.place) for kind in (_INSTEAD.get(aim.kind), Kind.COMMAND) if kind)):
                        victim = self._victims.aimed(one, self._daemon_pid, self._command_pids)
                        if victim is not None:
                            self._kill(victim, one.kind)
                            break

    @property
    def _daemon_pid(self) -> int | None:
        return None if self._daemon is None else self._daemon.process.pid

    @property
    def _command_pids(self) -> set[int]:
        return {command.process.pid for command in self._commands}

    def _edit(self) -> None:
        self._code += 1
        code = self._folder / "functions.py"
        edited = code.with_name(".functions.py")
        edited.write_text(_FUNCTIONS.replace("VERSION = 0", f"VERSION = {self._code}", 1), encoding="utf-8")
        edited.rename(code)

    def _cut_power(self) -> None:
        for process in self._victims.all():
            self._kill(process, "power")
        for one in (self._daemon, *self._commands):
            if one is not None:
                one.process.wait()
        patiently(lambda: not self._victims.all(), 30.0)

    def _lose_unsynced(self) -> None:
        if not self._preload.why_not:
            lost = self._power.lose()
            self._note(f"  {len(lost)} files lost what was not synced: {lost}")

    def _kill(self, process: psutil.Process, kind: str) -> None:
        if self._victims.kill(process):
            self._count(kind)
            self._note(f"  killed {kind} {process.pid}")

    def _count(self, kind: str) -> None:
        self.report.killed[kind] = self.report.killed.get(kind, 0) + 1
        self._last_kill = time.monotonic()
        if self.report.kills % 100 == 0:
            self._say(f"{self.report.kills} kills after {time.monotonic() - self._began:.0f} s")

    def _keep_daemon(self, point: str = "") -> None:
        """Starts a daemon if none is running."""
        daemon = self._daemon
        if daemon is not None:
            killed = daemon.process.pid in self._victims.killed  # it may take a moment to end
            code = daemon.process.wait() if killed else daemon.process.poll()
            if code is None:
                return
            self._judge_daemon(daemon, code)
        self._daemon = Daemon(self.home, **({"FAULT": point} if point else {}))
        self._victims.killed.discard(self._daemon.process.pid)  # of an earlier process: pids come again
        self._fault, self._stops = point, 0
        self._note(f"  daemon {self._daemon.process.pid} {point}")

    def _judge_daemon(self, daemon: Daemon, code: int) -> None:
        """Whether it may have ended in this way: killed, told to end, or without its disk or its catalog. One that has just begun
        does not listen to signals yet."""
        pid = daemon.process.pid
        self._note(f"  daemon {pid} ended with {code}")
        if code == -signal.SIGKILL and pid not in self._victims.killed:
            if not self._fault:
                raise UntrueError(f"somebody else killed the daemon {pid}")
            self._count("point")
        elif (
            code != -signal.SIGKILL
            and not (code in (0, -signal.SIGTERM) and self._stops)
            and not (code == 130 and self._stops > 1)  # the second signal ends it at once
            and not (code == 4 and self._is_troubled())
        ):
            raise UntrueError(f"the daemon ended with {code}:\n{daemon.log[-4000:]}")
        self._judge_text("the daemon", daemon.log)

    def _is_troubled(self) -> bool:
        """Whether disk or catalog were recently unavailable."""
        return time.monotonic() < self._troubled_until + 30.0

    def _judge_text(self, who: str, text: str) -> None:
        if "Traceback" in text or "This is a bug" in text:
            at = text.find("Traceback")
            raise UntrueError(f"{who} said:\n{text[max(0, at - 1000) : at + 5000]}")

    def _stop_daemon(self) -> None:
        if self._daemon is not None and self._daemon.process.poll() is None:
            self._stops += 1
            self._daemon.signal()

    def _freeze(self, step: PlanStep) -> None:
        for aim in step.aims:
            process = self._victims.aimed(aim, self._daemon_pid, self._command_pids)
            if process is not None:
                with suppress(psutil.Error):
                    process.suspend()
                    self._note(f"  froze {aim.kind} {process.pid} for {step.seconds:.1f} s")
                    self._frozen.append((time.monotonic() + step.seconds, process))

    def _thaw(self, until: float) -> None:
        for one in [one for one in self._frozen if one[0] <= until]:
            self._frozen.remove(one)
            with suppress(psutil.Error):
                one[1].resume()

    def _lull(self) -> None:
        """Waits until the engine is up and a batch was committed."""
        deadline = time.monotonic() + self.plan.lull
        before: float | None = None
        self._thaw(float("inf"))  # a frozen daemon would not answer
        while time.monotonic() < deadline:
            daemon = self._daemon
            if daemon is None or daemon.process.poll() is not None:
                return
            now = daemon.metric("volstream_job_batches_total", job_name="latest") if daemon.port else None
            if before is not None and now is not None and now > before:
                return
            before = now if before is None else before
            time.sleep(0.3)

    # Commands

    def _command(self, step: PlanStep) -> None:
        if len(self._commands) >= _MAX_COMMANDS:
            return
        choices = [
            ("refresh", "a"),
            ("refresh", "a", "--subdirectory", "d1"),
            ("run-job", "latest"),
            ("run-job", "latest", "--until-empty"),
            ("run-job", "latest", "--plan"),
            ("retry", "latest"),
            ("list", "failures"),
            ("status",),
            ("list", "batches"),
            ("pause", "latest"),
            ("resume", "latest"),
            ("engine", "stop"),
            ("sql", "SELECT count(*) FROM latest"),
        ]
        if self.plan.jobs > 1:
            choices += [
                ("run-job", "apart"),
                ("run-job", "apart", "--until-empty"),
                ("retry", "apart"),
                ("skip", "apart", "--kind", "worker-died"),
            ]
        if self.plan.jobs > 2:
            choices += [
                ("run-job", "moved"),
                ("run-job", "moved"),
                ("run-job", "each"),
                ("replay", "latest"),
                ("refresh", "b"),
                ("replay", "apart", "--where", "size % 3 = 0"),
                ("alter-job", "each", "--max-files", "7"),
                ("alter-job", "each", "--max-files", "40"),
            ]
        if self.plan.changes:
            choices += [
                *(("alter-job", "latest", "--function", f"functions.py:{name}") for name in ("again", "read")),
                *(("alter-job", "latest", "--expect", f"code >= {number}") for number in (0, -1)),
                *(("alter-job", job, "--retries", number) for job in ("latest", "each") for number in ("2", _RETRIES)),
                *((act, job) for act in ("pause", "resume") for job in ("each", "moved")),
                *((*self._created[job], "--or-replace") for job in ("latest", "moved", "apart")),
            ]
        for job in self._landings:
            choices += [("run-job", job), ("run-job", job), ("refresh", job), ("retry", job)]
        words = choices[int(step.choice * len(choices))]
        output = self._folder / f"command-{step.number}.txt"
        environment = self.home.environment(**({"FAULT": step.point} if step.point else {}))
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [VOLSTREAM, *words], cwd=self._folder, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
            )
        self._victims.killed.discard(process.pid)
        self._note(f"  {process.pid}: volstream {' '.join(words)} {step.point}")
        self._commands.append(_Command(words, process, output, time.monotonic()))

    def _look_at_commands(self) -> None:
        for command in [*self._commands]:
            code = command.process.poll()
            if code is None:
                if time.monotonic() - command.began > _COMMAND_ENDS_SECONDS:
                    command.process.send_signal(signal.SIGABRT)  # it tells where it hangs
                    command.process.wait(10)
                    raise UntrueError(f"{command.words} hung:\n{command.output.read_text()}")
                continue
            self._commands.remove(command)
            said = command.output.read_text(encoding="utf-8", errors="replace")
            self._note(f"  {command.process.pid} ended with {code}: {said[-300:]!r}")
            if code == -signal.SIGKILL and command.process.pid not in self._victims.killed:
                self._count("point")
            self._judge_text(f"{command.words}", said)
            if code not in (0, 3, 4, 5, -signal.SIGKILL):
                raise UntrueError(f"{command.words} ended with {code}:\n{said}")

    # The surroundings

    def _restart_catalog(self, seconds: float) -> None:
        assert self._postgres is not None
        self._postgres.stop()
        self._troubled_until = time.monotonic() + seconds
        time.sleep(seconds / 2)
        self._postgres.start()

    def _fill_disk(self, step: PlanStep) -> None:
        """Takes up the free space of a disk and frees it later."""
        disk = self._disks[int(step.choice * len(self._disks))]
        if disk is self._disk:
            self._troubled_until = time.monotonic() + step.seconds
        disk.fill()
        self._after(step.seconds, disk.empty)

    def _seal_disk(self, step: PlanStep) -> None:
        """Cuts the power; the disk is read-only when it is back, until somebody mends it."""
        for timer in self._later:  # one may free the disk
            timer.join()
        self._cut_power()
        self._troubled_until = time.monotonic() + step.seconds
        self._disk.seal()
        try:
            self._keep_daemon()
            self._command(step)
            time.sleep(step.seconds)
        finally:
            self._disk.unseal()

    def _move_clock(self, step: PlanStep) -> None:
        """Moves the clock by up to an hour, ahead or behind, and back again later."""
        moved = round((step.choice - 0.5) * 7200)
        self._note(f"  by {moved} s for {step.seconds:.1f} s")
        self._clock.move(moved)
        self._after(step.seconds, lambda: self._clock.move(0))

    def _spoil_cloud(self, step: PlanStep) -> None:
        """Makes bucket or queue, or both, slow or failing."""
        moods = [mood for mood in Mood if mood is not Mood.GOOD]
        mood = moods[int(step.choice * len(moods))]
        proxies = [*self._proxies.values()][: 1 + step.number % 2]
        self._note(f"  {len(proxies)} servers are {mood} for {step.seconds * 3:.1f} s")
        for proxy in proxies:
            proxy.mood = mood

        def better() -> None:
            for proxy in proxies:
                proxy.mood = Mood.GOOD

        self._after(step.seconds * 3, better)

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, do)
        timer.start()
        self._later.append(timer)

    # Afterwards

    def _unskip(self) -> bool:
        """Retries what was skipped, unless one of them has been processed meanwhile; returns True if nothing was."""
        skipped = [one["path"] for one in self.home.json("list", "failures", "--state", "skipped")]
        if skipped:
            self.home.run("retry", "apart", "--", *skipped)
        return not skipped

    def _settle(self) -> None:
        """The daemon is left alone. What its user would do is done: what failed of kills is tried again."""
        for timer in self._later:
            timer.join()
        self._thaw(float("inf"))
        if self._fault and self._daemon is not None and self._daemon.process.poll() is None:
            self._kill(psutil.Process(self._daemon.process.pid), "daemon")
            self._daemon.process.wait()
        self._note("the last kill")
        self._keep_daemon()
        for command in self._commands:  # those that kill themselves do so before what follows
            with suppress(subprocess.TimeoutExpired):
                command.process.wait(_COMMAND_ENDS_SECONDS)
        self._look_at_commands()
        self._keep_daemon()
        for job in ("latest", "each", "moved") if self.plan.changes else ("latest",):
            self.home.ok("resume", job)
        if self.plan.changes:
            self.home.ok("alter-job", "latest", "--function", "functions.py:read")
        for job in [*(job.job for job in self.jobs), *self._landings]:  # what was planned while the clock was wrong
            self.home.ok("retry", job)
        failed = {one["job"].rpartition(".")[2] for one in self.home.json("list", "failures")} if self._many else set[str]()
        for job in failed & {job.job for job in self._many}:
            self.home.ok("retry", job)
        if self.plan.jobs > 1:
            patiently(self._unskip, 60.0)
        if self.plan.jobs > 2:
            self.home.ok("alter-job", "moved", "--on-change")
        self._await_truth()
        self._say(f"true {self.report.true_seconds:.1f} s after the last kill")
        # What fails for good is tried a few times more.
        self._await_nothing(lambda: [*truth.of_status(self.home, [*self.jobs, *self._many])], "not at rest", 120.0)
        self._must(self.differences())
        self._must(truth.of_spark(self.home, self.jobs))
        if not self.plan.changes:  # which make one code two versions
            self._must(truth.of_code(self.home, self.jobs, self._code))
        self._end_daemon()
        self._sweep()
        self._await_nothing(lambda: [f"{one.pid} {one.cmdline()}" for one in self._victims.all()], "still running", 30.0)

    def _await_truth(self) -> None:
        deadline = time.monotonic() + _TRUE_SECONDS
        while True:
            self._check_daemon()
            found = self.differences()
            looked = time.monotonic()
            if not found:
                self.report.true_seconds = looked - self._last_kill
                return
            if looked >= deadline:
                raise UntrueError("\n".join(["not true in the end:", *found]))
            time.sleep(0.3)

    def _check_daemon(self) -> None:
        assert self._daemon is not None
        if self._daemon.process.poll() is not None:
            raise UntrueError(f"the daemon ended, left alone:\n{self._daemon.log[-4000:]}")

    def _end_daemon(self) -> None:
        assert self._daemon is not None
        self._daemon.await_ready()
        self._stop_daemon()
        self._judge_daemon(self._daemon, self._daemon.ended())
        self._daemon = None

    def _sweep(self) -> None:
        """Makes leftovers two days older than they are, and lets a daemon sweep them."""
        before = time.time() - 2 * 86400
        for folder in (self._temporary, *(self.home.path / "warehouse").glob("_*")):
            for one in [*folder.rglob("*"), folder]:
                os.utime(one, (before, before), follow_symlinks=False)
        found = [*truth.of_leftovers(self.home, self._temporary)]
        self._note(f"to be swept: {found}")
        if not found:
            return
        self._keep_daemon()
        self._await_nothing(
            lambda: [leftover for leftover in truth.of_leftovers(self.home, self._temporary) if leftover in found],
            "left over",
            30.0,
        )
        self._end_daemon()
        self._must(truth.of_leftovers(self.home, self._temporary))

    def _must(self, found: Iterable[str]) -> None:
        told = [*found]
        if told:
            raise UntrueError("\n".join(told))

    def _await_nothing(self, look: Callable[[], list[str]], what: str, seconds: float) -> None:
        try:
            patiently(lambda: not look(), seconds)
        except AssertionError:
            raise UntrueError("\n".join([f"{what}:", *look()])) from None

    def _end_all(self) -> None:
        """Kills whatever is still running after a failure."""
        for timer in self._later:
            timer.join()
        for process in self._victims.all():
            self._victims.kill(process)
        for popen in [*(command.process for command in self._commands), *([self._daemon.process] if self._daemon else [])]:
            popen.wait()

    def _note(self, line: str) -> None:
        self._log.write(f"{time.monotonic() - self._began:8.2f} {line}\n")
