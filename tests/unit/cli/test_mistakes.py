"""Mistakes of users are reported as such, never as bugs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from volstream.cli.main import run

#: Bytes of a name that is not text in UTF-8, as Python shows them.
ODD = "\udcff"

#: In place of the file of functions.
FILE = "{file}"

EscapedText = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A home that has a volume, a stream and a job."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "files").mkdir()
    (folder / "f.py").write_text("def f(file, *, a=''): ...")
    home = str(folder / "home")
    for arguments in (
        ["create-volume", "v", str(folder / "files")],
        ["create-stream", "s", "--volume", "v"],
        ["create-job", "j", "--volume", "v", "--function", f"{folder}/f.py:f", "--returns", "n INT", "--into", "t"],
    ):
        assert run([*arguments, "--home", home]) == 0
    return home


@pytest.fixture
def said(home: str, capsys: pytest.CaptureFixture[str]) -> EscapedText:
    """Runs a command in the home; its exit code and what it said."""

    def call(*arguments: str) -> tuple[int, str]:
        file = os.path.join(os.path.dirname(home), "f.py")
        given = [argument.replace(FILE, file) for argument in arguments]
        code = run(given if given[0] == "try" else [*given, "--home", home])
        seen = capsys.readouterr()
        return code, seen.out + seen.err

    return call


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["create-volume", "w", ".", "--pattern", ODD], 3, "not valid UTF-8 text"),
        (["create-volume", "w", ".", "--comment", ODD], 3, "not valid UTF-8 text"),
        (["read-batch", ODD], 3, "not valid UTF-8 text"),
        (["retry", "j", ODD], 3, "not valid UTF-8 text"),
        (["sql", f"SELECT {ODD}"], 3, "not valid UTF-8 text"),
        (["alter-job", "j", "--arg", f"a={ODD}"], 3, "not valid UTF-8 text"),
        (["alter-job", "j", "--where", "it's"], 3, "cannot be read"),
        (["create-volume", "w", FILE], 3, "/f.py is not a directory.\n  Give "),
        (["create-volume", "w", FILE], 3, "the pattern 'f.py'."),
        (["create-volume", "w", f"{FILE}/nosuch"], 3, "does not exist.\n  Create it"),
        (["try", f"{FILE}:f", os.path.dirname(__file__)], 3, "is a directory.\n  Give files: "),
        (["try", f"{FILE}:f", "nosuch.txt"], 3, "There is no file nosuch.txt."),
        (["alter-job", "j", "--returns", "n INTEGR"], 3, "There is no type INTEGR.\n  Did you mean 'INTEGER'?"),
        (["alter-job", "j", "--returns", "n INTERVAL"], 3, "cannot be an INTERVAL"),
        (["alter-job", "j", "--cron", "99 * * * *"], 3, "the minute cannot be '99'"),
        (["run-job", "jj"], 3, "There is no job jj.\n  Did you mean 'j'?"),
        (["refresh", "vv"], 3, "Did you mean 'v'?"),
        (["create-stream", "x", "--table", "tt"], 3, "There is no table tt."),
        (["sql", "SHOW VOLUME DIRECTORY vv"], 3, "Did you mean 'v'?"),
        (["sql", "DROP DYNAMIC TABLE d"], 3, "There is no dynamic table d."),
        (["sql", "CREATE TASK x AS SELECT 1"], 3, "CREATE JOB j EVERY '5m' AS INSERT"),
        (["sql", "SHOW STREAMS; SHOW JOBS WHERE name = 'x'"], 3, "SHOW takes IN public and LIKE"),
        (
            ["create-job", "k", "--volume", "v", "--function", f"{FILE}:f", "--returns", "n INT", "--into", "t"],
            3,
            "The table t mirrors the files of job j.\n  Let k write another table",
        ),
        (["alter-job", "j", "--where", "(" * 3000], 3, "nested too deeply"),
        (["alter-job", "j", "--returns", "a " + "ARRAY<" * 3000 + "INT" + ">" * 3000], 3, "nested too deeply"),
        (["alter-job", "j", "--returns", "d DECIMAL(99)"], 3, "There is no type DECIMAL(99,0)"),
        (["alter-job", "j", "--returns", "d DECIMAL(2147483648, 1)"], 3, "There is no type DECIMAL(2147483648,1)"),
        (["alter-job", "j", "--returns", "d STRUCT<INT, b: INT>"], 3, "cannot have the type"),
        (["alter-job", "j", "--returns", "d DECIMAL(1, 2, 3)"], 3, "cannot have the type"),
        (["alter-job", "j", "--returns", "d DECIMAL(5, 9)"], 3, "There is no type DECIMAL(5,9)"),
        (["alter-job", "j", "--returns", "d 'INT"], 3, "cannot be parsed"),
        (["alter-job", "j", "--timeout", "99999999999999d"], 2, "longer than ten years"),
        (["alter-job", "j", "--every", "9" * 400 + "d"], 2, "longer than ten years"),
        (["alter-job", "j", "--max-bytes", "9" * 400], 2, "more than 1 EiB"),
        (["alter-job", "j", "--max-bytes", "99999999TiB"], 2, "more than 1 EiB"),
        (["alter-job", "j", "--max-files", "9" * 30], 2, "too large a number"),
        (["alter-job", "j", "--retries", "9" * 5000], 2, "too large a number"),
        (["create-stream", "x", "--volume", "v", "--at-timestamp", "0001-01-01T00:00:00+14:00"], 2, "years 1 to 9999"),
        (["reset-stream", "s", "--to-timestamp", "9999-12-31T23:59:59-14:00"], 2, "years 1 to 9999"),
        (["reset-stream", "s", "--to-version", "9" * 30], 2, "too large a number"),
        (["list", "batches", "--limit", "9" * 30], 2, "--limit"),
        (["sql", "ALTER STREAM s RESET TO VERSION " + "9" * 30], 3, "VERSION cannot be"),
    ],
)
def test_mistakes_are_reported_as_user_errors(said: EscapedText, arguments: list[str], code: int, message: str) -> None:
    found, text = said(*arguments)
    assert (found, "Traceback" in text) == (code, False), text
    assert message in text


def test_a_file_whose_name_is_not_text_can_be_named(said: EscapedText) -> None:
    code, text = said("explain-file", "v", ODD)
    assert (code, "There is no record of" in text, "Traceback" in text) == (3, True, False), text


def test_unreadable_settings_are_reported_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "volstream.toml").symlink_to("/proc/self/mem")
    assert run(["list", "volumes", "--home", str(tmp_path)]) == 3
    assert "volstream.toml cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"cores = \xff", b"cores = " + b"[" * 3000])
def test_settings_that_cannot_be_parsed_are_reported_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "volstream.toml").write_bytes(content)
    assert run(["list", "volumes", "--home", str(tmp_path)]) == 3
    assert "volstream.toml cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["catalog_url = 'postgresql://h:port/d'", "spark_remote = 'sc://h:port'"])
def test_a_port_that_is_not_a_number_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str) -> None:
    (tmp_path / "volstream.toml").write_text(f"warehouse = '/mnt/w'\n{setting}")
    assert run(["sql", "CREATE TABLE t (n INT)", "--home", str(tmp_path)]) == 3
    assert setting.split()[0] in capsys.readouterr().err


def test_a_volume_says_at_once_how_many_files_match(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.txt", "b.txt", "c.csv"):
        (tmp_path / "files" / "sub").mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / "sub" / name).touch()
    (tmp_path / "none").mkdir()
    cases = (
        ("files", ["*.txt"], "2 files match."),
        ("files", ["*.csv"], "1 file matches."),
        ("files", ["*.jpg", "*.txt", "--no-recursive"], "It has no files yet."),
        ("files", ["*.jpg"], "None of 3 files matches '*.jpg'."),
        ("none", ["*.jpg"], "It has no files yet."),
        ("none", ["*.jpg", "--no-check"], "(queue: local).\n"),
    )
    for at, (folder, patterns, said) in enumerate(cases):
        arguments = ["create-volume", f"v{at}", str(tmp_path / folder), "--home", str(tmp_path / "home")]
        assert (
            run(
                [
                    *arguments,
                    *(part for pattern in patterns for part in (["--pattern", pattern] if "*" in pattern else [pattern])),
                ]
            )
            == 0
        )
        assert capsys.readouterr().out.endswith(f"{said}\n" if not said.endswith("\n") else said)
