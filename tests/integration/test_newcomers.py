"""Mistakes of beginners, and the messages they get. Nothing here needs an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from tests import objects
from tests.commands import Shell
from volstream.api.session import Session
from volstream.base.model.work import PlanState, Target
from volstream.catalog import Catalog, tables
from volstream.cli.main import run
from volstream.functions.printing import CapturedOutput, Line
from volstream.jobs.batches import logs
from volstream.jobs.batches.ledger import LOGS


@pytest.mark.parametrize(
    "command", [["list", "volumes"], ["status"], ["refresh", "v"], ["run-job", "j"], ["sql", "SELECT * FROM t"]]
)
def test_a_mistyped_home_is_reported_and_not_created(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--home", str(tmp_path / "hoem")]) == 3
    assert "There is no volstream home" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        ("none", (), "none() -> None cannot be called with a file: too many positional arguments"),
        ("two", (), "two(file, language) cannot be called with a file: missing a required argument: 'language'"),
        ("one", ("--arg", "size=3"), "one has no argument 'size'."),
        ("Model", (), "Model(size) cannot be set up: missing a required argument: 'size'"),
        ("Sized", ("--arg", "size=abc"), "The argument size is 'abc', which is no int."),
        ("Deaf", (), "cannot be called with a file: too many positional arguments"),
    ],
)
def test_a_function_that_cannot_be_called_is_rejected_when_the_job_is_created(
    shell: Shell, function: str, options: tuple[str, ...], said: str
) -> None:
    code, _, err = shell.job("j", function, *options)
    assert (code, said in err) == (3, True), err
    assert json.loads(shell.ok("list", "jobs", "--format", "json")) == []


def test_changing_a_jobs_condition_says_what_happens_to_existing_files(shell: Shell) -> None:
    assert shell.job("j", "one", "--where", "size < 10")[0] == 0
    said = shell.ok("alter-job", "j", "--where", "size < 20")
    assert "volstream replay j" in said
    assert "stay in t." in said
    assert "replay" not in shell.ok("alter-job", "j", "--retries", "2")


def test_runs_without_a_daemon_forget_work_that_ended_long_ago(shell: Shell) -> None:
    assert shell.job("j", "one")[0] == 0
    shell.ok("refresh", "v")
    catalog = Catalog(f"sqlite:///{shell.home}/catalog.db")
    job = catalog.jobs.list()[0]
    objects.store_plan(catalog, job, state=PlanState.DONE, created_on=objects.NOW)
    shell.ok("advance-stream", str(catalog.streams.list()[0].name))
    assert "Nothing to do" in shell.ok("run-job", "j")
    with catalog.database.reading() as transaction:
        assert transaction.execute(select(tables.plans)).all() == []
    catalog.close()


def test_matching_arguments_are_accepted_and_others_rejected_later_too(shell: Shell) -> None:
    assert shell.job("two", "two", "--arg", "language=de")[0] == 0
    assert shell.job("model", "Model", "--arg", "size=3", "--into", "models")[0] == 0
    code, _, err = shell("alter-job", "two", "--arg", "speech=de")
    assert (code, "'speech'" in err or "'language'" in err) == (3, True), err


def test_a_table_in_a_missing_schema_is_rejected(shell: Shell) -> None:
    code, _, err = shell.job("j", "one", "--into", "nosuch.t")
    assert (code, "CREATE SCHEMA nosuch" in err) == (3, True), err


def test_a_volume_that_contains_the_home_is_rejected_unless_it_ignores_it(shell: Shell) -> None:
    parent = str(shell.home.parent)
    code, _, err = shell("create-volume", "w", parent)
    assert (code, "ignore 'home/**'" in err) == (3, True), err
    assert shell("create-volume", "w", parent, "--ignore", "home/**")[0] == 0
    assert shell("create-volume", "x", parent, "--pattern", "*.txt")[0] == 0


def test_a_volume_in_use_is_dropped_with_its_users_or_not_at_all(shell: Shell) -> None:
    assert shell.job("j", "one")[0] == 0
    code, _, err = shell("drop", "volume", "v")
    assert (code, "job j" in err, "--cascade" in err) == (3, True, True), err
    shell.ok("drop", "volume", "v", "--cascade")
    for kind in ("volumes", "streams", "jobs"):
        assert json.loads(shell.ok("list", kind, "--format", "json")) == []


def test_refreshing_or_explaining_something_unknown_is_an_error(shell: Shell) -> None:
    assert shell("refresh", "v", "--subdirectory", "nosuch")[0] == 3
    shell.ok("refresh", "v")
    code, out, err = shell("explain-file", "v", "nosuch.txt")
    assert (code, out, "There is no record of nosuch.txt" in err) == (3, "", True)
    assert "Did you mean 'a.txt'?" in shell("explain-file", "v", "aa.txt")[2]
    assert "Paths are relative to the volume: 'a.txt'." in shell("explain-file", "v", str(shell.files / "a.txt"))[2]
    assert "in the directory" in shell.ok("explain-file", "v", "a.txt")
    shell.job("j", "one", "--where", "size > 99")
    assert "takes only=size > 99" in shell.ok("explain-file", "v", "a.txt")
    assert "The job j creates it with its first batch." in shell("describe", "table", "t")[2]
    (shell.files / "a.txt").unlink()
    assert "no longer exists" in shell.ok("explain-file", "v", "a.txt")


def test_skip_requires_a_selection(shell: Shell) -> None:
    assert shell.job("j", "one")[0] == 0
    for options in ([], ["a.txt", "--all"], ["--all", "--kind", "raised"]):
        assert shell("skip", "j", *options)[0] == 2
    assert "0 files skipped" in shell.ok("skip", "j", "--all")
    assert "0 files skipped" in shell.ok("skip", "j", "--like", "a%")
    assert "0 files due" in shell.ok("retry", "j", "--all")
    assert "0 files due" in shell.ok("retry", "j", "--kind", "timed-out")


def test_closing_the_pipe_after_the_first_line_is_not_an_error(shell: Shell) -> None:
    line = [sys.executable, "-c", "from volstream.cli import main; main()", "list", "volumes", "--home", str(shell.home)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        assert command.stderr.read() == b""
    assert command.returncode == 0


def test_altering_a_volume_removes_files_that_leave_and_adds_files_that_enter(shell: Shell) -> None:
    for number in range(15):
        (shell.files / f"{number}.csv").write_text("x")
    for file in shell.files.iterdir():
        os.utime(file, (1_700_000_000, 1_700_000_000))
    shell.ok("alter-volume", "v", "--pattern", "*.txt")
    assert "2 new, 0 changed, 0 removed" in shell.ok("refresh", "v")
    shell.ok("alter-volume", "v", "--pattern", "*.csv", "--comment", "tables")
    assert "15 new, 0 changed, 2 removed" in shell.ok("refresh", "v")
    # All of them leave, but none was deleted: no confirmation is needed.
    shell.ok("alter-volume", "v", "--pattern", "*.pdf")
    assert "0 new, 0 changed, 15 removed" in shell.ok("refresh", "v")
    shell.ok("alter-volume", "v", "--all-files", "--ignore", "1*")
    assert "11 new, 0 changed, 0 removed" in shell.ok("refresh", "v")
    described = json.loads(shell.ok("describe", "volume", "v", "--format", "json"))
    assert (described["patterns"], described["ignores"], described["comment"]) == ([], ["1*"], "tables")
    for wrong in (["--pattern", "/a"], ["--queue-type", "sqs"], ["--connection", "nosuch"], ["--max-removals", "some"]):
        assert shell("alter-volume", "v", *wrong)[0] == 3


def test_function_output_is_shown_by_batch_and_file_with_control_characters_escaped(shell: Shell) -> None:
    assert shell.job("j", "one")[0] == 0
    assert shell("logs", "j") == (0, "", "No output is kept.\n")
    assert shell("logs", "j", "--file", "a.txt")[2] == "No output is kept for it.\n"
    assert json.loads(shell.ok("logs", "j", "--format", "json")) == []
    assert shell("logs", "nosuch")[0] == 3
    (job,) = json.loads(shell.ok("list", "jobs", "--format", "json"))
    lines = [Line(1_700_000_000.5, "stdout", "red \x1b[31m"), Line(1_700_000_001.5, "log", "ERROR mine: no")]
    entries = [
        CapturedOutput((), [Line(1_600_000_000.0, "stderr", "loading")]).encoded(failed=False),
        CapturedOutput(["a.txt"], lines, dropped=3).encoded(failed=True),
        CapturedOutput(["b.txt", "c.txt"], lines).encoded(failed=False),
    ]
    logs.write(LOGS.of(str(shell.home / "warehouse"), job["id"]), "batch1", entries, 1 << 20)
    shown = shell.ok("logs", "j")
    assert shown.splitlines()[0] == "batch batch1"
    assert "(set-up)  stderr  loading" in shown
    assert "a.txt  (3 lines before these were not kept" in shown
    assert "a.txt  stdout  red \\x1b[31m" in shown
    assert "b.txt and 1 more of the same call  log  ERROR mine: no" in shown
    found = json.loads(shell.ok("logs", "j", "--file", "c.txt", "--lines", "1", "--format", "json"))
    assert found == [
        {
            "batch": "batch1",
            "files": ["b.txt", "c.txt"],
            "time": "2023-11-14T22:13:21.500000+00:00",
            "stream": "log",
            "text": "ERROR mine: no",
        }
    ]
    assert shell("logs", "j", "--batch", "other")[1] == ""
    assert shell("logs", "j", "--lines", "0")[0] == 2
    shell.ok("drop", "job", "j")
    assert not list((shell.home / "warehouse" / "_logs").iterdir())


def test_a_job_can_always_be_dropped(shell: Shell) -> None:
    assert shell.job("j", "one")[0] == 0
    batch = left_open(shell)
    # Its table is not there: what became of the attempt cannot be known.
    code, _, err = shell("drop", "job", "j")
    assert (code, "volstream drop job j --force" in err) == (3, True), err
    assert shell("drop", "volume", "v", "--force")[0] == 2
    out = shell.ok("drop", "job", "j", "--force")
    assert "The job j is dropped." in out
    assert f"they have _batch_id = '{batch}'" in out
    assert shell.job("j", "one")[0] == 0
    assert "open" not in shell.ok("drop", "job", "j", "--force")


def left_open(shell: Shell) -> str:
    """Leaves an open attempt at a batch whose process is gone; the batch's id."""
    with Session(shell.home) as session:
        catalog, job = session.home.catalog, session.jobs.get("j")
        catalog.streams.change(session.streams.get("j_stream"), offset=3)
        _, (batch,) = objects.store_plan(catalog, job)
        catalog.consumptions.begin(batch, owner="gone", target=Target(f"{shell.home}/nowhere", "table", 0))
    return batch.id


def test_read_only_commands_load_neither_arrow_nor_spark(shell: Shell) -> None:
    code = (
        "import sys; from volstream.cli.main import run; "
        "[run([*one.split(), '--home', sys.argv[1]]) for one in ('list volumes', 'describe volume v', 'status')]; "
        "print({'pyarrow', 'deltalake', 'numpy', 'pandas', 'pyspark', 'alembic'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code, str(shell.home)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    "words",
    [
        ("list", "volumes", "--home", "{}"),
        ("init", "--home", "{}"),
        ("try", "{}.py:f", __file__),
        ("backup", "{}"),
        ("restore", "{}"),
        ("apply", "{}.toml"),
        ("create-volume", "w", "{}"),
        ("create-job", "j", "--volume", "v", "--function", "{}.py:f", "--into", "t"),
    ],
)
def test_a_name_that_is_too_long_is_an_error_of_the_user(
    words: tuple[str, ...], shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.ok("init")
    given = [word.format("x" * 300) for word in words]
    home = [] if "--home" in words or words[0] == "try" else ["--home", str(shell.home)]
    assert run([*given, *home]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_a_trial_shows_each_cause_once_and_names_the_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = tmp_path / "look.py"
    code.write_text(
        "def f(file):\n    if file.size > 2:\n        raise ValueError(f'{file.name} is bad')\n    return {'n': 1 // file.size}"
    )
    paths = [tmp_path / f"{number}.txt" for number in range(10)]
    for number, path in enumerate(paths):
        path.write_text("x" * number)
    assert run(["try", f"{code}:f", *map(str, paths)]) != 0
    said = capsys.readouterr().err
    assert (said.count("ValueError: "), said.count("ZeroDivisionError: ")) == (2, 2), (
        "by its line, and at the end of its traceback"
    )
    assert f"The same with 6 other files: {', '.join(map(str, paths[4:9]))}, ...\n" in said
    assert "8 of 10 files failed." in said
    assert run(["try", f"{code}:f", f"{tmp_path}/[12].txt"]) == 0, "a pattern that no shell has expanded"
    assert "There is no file" not in capsys.readouterr().err
