"""Mistakes of users and failures of machines: each gives a message with a remedy and the documented exit code, and loses nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.disks import mounted
from tests.e2e.homes import Done, Home, finished, write
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(200)


def job(home: Home, name: str, files: Path, function: str, *options: str) -> None:
    home.ok("create-volume", name, str(files))
    home.create_job(name, function, *options)


def refused(done: Done, code: int, *said: str) -> None:
    assert done.code == code, done
    assert "Traceback" not in done.stderr
    for part in said:
        assert part in done.stderr, done.stderr


def test_listing_volumes_starts_no_engine(home: Home, name: str, files: Path) -> None:
    home.ok("create-volume", name, str(files))
    assert name in home.ok("list", "volumes")
    assert home.engine() == {}


def test_json_is_one_document_on_stdout_and_errors_are_json_on_stderr(home: Home) -> None:
    done = home.run("describe", "volume", "nowhere", "--format", "json")
    assert (done.code, done.stdout) == (3, "")
    assert '"message"' in done.stderr
    assert isinstance(home.json("list", "jobs"), list)


@pytest.mark.parametrize(
    "command",
    [
        ["describe", "volume", "nowhere"],
        ["refresh", "nowhere"],
        *(
            pytest.param(command, marks=pytest.mark.long)
            for command in (
                ["run-job", "nowhere"],
                ["drop", "stream", "nowhere"],
                ["create-stream", "s", "--volume", "nowhere"],
                ["explain-file", "nowhere", "a"],
                ["pause", "nowhere"],
                ["list", "failures", "--job", "nowhere"],
                ["advance-stream", "nowhere"],
                ["retry", "nowhere"],
            )
        ),
    ],
)
def test_an_unknown_object_is_named_and_exits_with_3(home: Home, command: list[str]) -> None:
    refused(home.run(*command), 3, "nowhere")


@pytest.fixture(scope="module", autouse=True)
def _made(home: Home) -> None:
    home.ok("init")


def test_wrong_usage_exits_with_2(home: Home) -> None:
    refused(home.run("refersh", "x"), 2, "Did you mean 'refresh'")


@pytest.mark.long
def test_a_volume_on_a_missing_directory_names_it(home: Home, name: str, tmp_path: Path) -> None:
    refused(home.run("create-volume", name, str(tmp_path / "missing")), 3, str(tmp_path / "missing"), "Create it")
    assert home.run("describe", "volume", name).code == 3


@pytest.mark.long
def test_a_function_that_cannot_be_found_or_imported_says_why(home: Home, name: str, files: Path) -> None:
    home.ok("create-volume", name, str(files))
    write(
        home.folder,
        {
            "broken.py": "import no_such_package_anywhere\n\ndef f(file): ...\n",
            "syntax.py": "def f(file:\n",
            "fine.py": "def g(file) -> None: ...\n",
        },
    )

    def create(function: str) -> Done:
        return home.run("create-job", name, "--volume", name, "--function", function, "--into", name, "--returns", "a STRING")

    refused(create("missing.py:f"), 3, "There is no file", "missing.py")
    refused(create("broken.py:f"), 3, "no_such_package_anywhere", "Install")
    refused(create("syntax.py:f"), 3, "syntax.py", "line 1")
    refused(create("fine.py:f"), 3, "It defines: g")
    refused(create("no_such_module:f"), 3, "There is no module no_such_module")
    refused(create("nonsense"), 3, "FILE.py:FUNCTION")
    assert home.run("describe", "job", name).code == 3


@pytest.mark.long
def test_bad_cron_lines_and_bad_result_columns_are_rejected(home: Home, name: str, files: Path) -> None:
    home.ok("create-volume", name, str(files))
    create = ["create-job", name, "--volume", name, "--function", "functions.py:read", "--into", name]
    refused(home.run(*create, "--cron", "61 * * * *"), 3, "61 * * * *")
    refused(home.run(*create, "--returns", "a NONSENSE"), 3, "a NONSENSE")
    refused(home.run(*create, "--arg", "nothing"), 2, "KEY=VALUE")


def test_invalid_settings_are_named(home: Home) -> None:
    refused(home.run("list", "volumes", LEASE_SECONDS="soon"), 3, "lease_seconds", "soon")


@pytest.mark.long
def test_a_syntax_error_in_sql_says_where(home: Home) -> None:
    refused(home.run("sql", "SELEC 1"), 3, "SELEC")
    refused(home.run("sql", "SELECT * FROM no_such_table"), 3, "no_such_table")


@pytest.mark.long
def test_a_result_of_the_wrong_type_fails_only_its_file_and_a_retry_after_the_fix_succeeds(
    home: Home, name: str, files: Path
) -> None:
    write(files, {"a.txt": "good", "b.txt": "bad"})
    job(home, name, files, "functions.py:wrong")

    refused(home.run("run-job", name), 5, "1 file failed", f"volstream list failures --job {name}")

    assert home.pairs(name) == [("a.txt", "fine")]
    [failure] = home.json("list", "failures", "--job", name)
    assert failure["path"] == "b.txt"
    assert "text" in failure["message"]

    home.ok("alter-job", name, "--function", "functions.py:read")
    home.ok("retry", name)
    home.ok("run-job", name)
    assert home.pairs(name) == [("a.txt", "fine"), ("b.txt", "bad")]
    assert not home.json("list", "failures", "--job", name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_fails_alone_and_succeeds_once_readable(home: Home, name: str, files: Path) -> None:
    write(files, {"a.txt": "a", "b.txt": "b"})
    (files / "b.txt").chmod(0)
    job(home, name, files, "functions.py:read")

    refused(home.run("run-job", name), 5)

    [failure] = home.json("list", "failures", "--job", name)
    assert failure["path"] == "b.txt"
    (files / "b.txt").chmod(0o600)
    home.ok("retry", name)
    home.ok("run-job", name)
    assert home.pairs(name) == [("a.txt", "a"), ("b.txt", "b")]


@pytest.mark.long
def test_a_vanished_directory_is_an_error_and_not_a_deletion_of_everything(home: Home, name: str, files: Path) -> None:
    write(files, {"a.txt": "a"})
    job(home, name, files, "functions.py:read")
    home.ok("run-job", name)
    files.rename(files.with_name("elsewhere"))

    refused(home.run("refresh", name), 4, str(files))

    home.ok("run-job", name)
    assert home.pairs(name) == [("a.txt", "a")]
    files.with_name("elsewhere").rename(files)
    assert home.json("refresh", name)["deleted"] == 0


@pytest.mark.long
def test_a_full_disk_ends_the_run_with_4_and_the_next_run_succeeds_once_there_is_space(
    home: Home, name: str, files: Path
) -> None:
    write(files, {f"{number}.txt": "x" for number in range(4)})
    job(home, name, files, "functions.py:big")
    place = home.path / "warehouse" / "tables" / "public" / name
    place.mkdir(parents=True)
    with mounted(place, "300k") as disk:
        if disk.why_not:
            pytest.skip(f"no tmpfs can be mounted: {disk.why_not}")
        refused(home.run("run-job", name), 4, "Free space")

        disk.resize("64m")
        home.ok("run-job", name)
        assert [path for path, _ in home.pairs(name)] == [f"{number}.txt" for number in range(4)]


_WRITING = (["refresh", "v"], ["create-volume", "w", "."], ["sql", "SELECT 1"], ["daemon"])


@pytest.mark.parametrize("commands", [_WRITING[:1], pytest.param(_WRITING, marks=pytest.mark.long)], ids=["refresh", "all"])
def test_a_read_only_disk_ends_every_command_with_4_and_a_word_about_it(tmp_path: Path, commands: Sequence[list[str]]) -> None:
    home = Home(tmp_path)
    write(tmp_path / "files", {"a.txt": "a"})
    home.path.mkdir(mode=0o700)
    with mounted(home.path, "64m") as disk:
        if disk.why_not:
            pytest.skip(f"no tmpfs can be mounted: {disk.why_not}")
        home.ok("create-volume", "v", str(tmp_path / "files"))
        disk.seal()
        for command in commands:
            refused(home.run(*command), 4, "read-only")
        disk.unseal()
        assert home.json("refresh", "v")["inserted"] == 1


@pytest.mark.long
def test_ctrl_c_finishes_the_current_batch_and_exits_with_130(home: Home, name: str, files: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    write(files, {f"{number}.txt": str(number) for number in range(3)})
    job(
        home,
        name,
        files,
        "functions.py:slow",
        "--write",
        "append",
        "--max-files",
        "1",
        "--arg",
        f"started={started}",
        "--arg",
        "seconds=1",
    )
    running = home.start("run-job", name)
    eventually(started.exists, timeout=60)
    running.send_signal(signal.SIGINT)

    refused(finished(running), 130, "Finishing the current batch", "Interrupted")

    states = [batch["state"] for batch in home.json("list", "batches", "--job", name)]
    assert states.count("committed") == 1
    home.ok("run-job", name)
    assert home.pairs(name) == [("0.txt", "0"), ("1.txt", "1"), ("2.txt", "2")]
