"""The entry point, before any command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.disks import mounted
from volstream.cli.main import run
from volstream.cli.output import Output
from volstream.errors import NotFoundError


def test_the_help_is_shown_without_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2  # click's code, as for any group without a command
    said = capsys.readouterr()
    assert (said.out, said.err.startswith("Usage: volstream")) == ("", True)
    assert "create-volume" in said.err
    assert "Traceback" not in said.err


def test_options_of_all_commands_stand_before_or_after_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = str(tmp_path / "none")
    for arguments in (["--home", home, "status"], [f"--home={home}", "--format", "json", "env", "list"]):
        assert run(arguments) == 3
        assert f"There is no volstream home at {home}." in capsys.readouterr().err
    assert run(["--format", "json", "completion", "bash"]) == 2


def test_a_notebook_shows_the_callers_line_and_the_message() -> None:
    program = compile("def f():\n    raise E('The volume is gone.', 'Create it.')\n\nf()", "/tmp/ipykernel_1/2.py", "exec")
    with pytest.raises(NotFoundError) as caught:
        exec(program, {"E": NotFoundError})  # noqa: S102  # as a notebook does
    assert caught.value._render_traceback_() == ["NotFoundError: The volume is gone. Create it."]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shells_completion_script_is_printed(
    shell: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_VOLSTREAM_COMPLETE", f"{shell}_source")
    with pytest.raises(SystemExit, match=r"^0$"):
        run([])
    assert f"_VOLSTREAM_COMPLETE={shell}_complete" in capfd.readouterr().out


def test_commands_are_completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_VOLSTREAM_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "volstream cr")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit, match=r"^0$"):
        run([])
    words = capsys.readouterr().out.split()
    assert words == [f"plain,create-{kind}" for kind in ("connection", "volume", "stream", "job")]


@pytest.mark.parametrize(
    ("arguments", "as_json"),
    [
        ([], False),
        (["--format"], False),
        (["json"], False),
        (["list", "--format", "text", "json"], False),
        (["list", "--format", "json"], True),
        (["--format=json"], True),
    ],
)
def test_errors_are_json_when_the_arguments_ask_for_it(arguments: list[str], as_json: bool) -> None:
    assert Output.for_errors(arguments).as_json is as_json


def test_a_full_disk_is_not_reported_as_a_bug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mounted(tmp_path, "4k") as disk:
        if disk.why_not:
            pytest.skip(f"no tmpfs can be mounted: {disk.why_not}")
        (tmp_path / "home").mkdir()
        disk.fill()
        assert run(["init", "--home", str(tmp_path / "home" / "below")]) == 4
    said = capsys.readouterr().err
    assert "No space left" in said
    assert "Free space" in said


@pytest.mark.parametrize("below", [".", "x", "x/y"])
def test_a_home_below_a_file_is_an_error_of_the_user(tmp_path: Path, below: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert run(["init", "--home", str(file / below)]) == 3
    said = capsys.readouterr().err
    assert f"Error: {file} is not a folder." in said
    assert "bug" not in said


def test_the_documentation_is_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["docs"]) == 0
    assert "guides/functions" in capsys.readouterr().out
    assert run(["docs", "functions"]) == 0
    assert capsys.readouterr().out.startswith("# Functions\n")
    assert run(["docs", "tutoral"]) == 3
    assert "Did you mean 'tutorial'?" in capsys.readouterr().err


def test_the_words_of_other_tools_lead_to_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-V"]) == 0
    capsys.readouterr()
    for word, instead in {"jobs": "list jobs", "ui": "console", "watch": "status --watch", "ls": "list KIND"}.items():
        assert run([word]) == 2
        assert f"No such command '{word}'. Run: volstream {instead}" in capsys.readouterr().err
