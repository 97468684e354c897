"""Completion in the shell: its scripts, and names of objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import Shell, shell
from volstream.cli.main import run

__all__ = ["shell"]


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> object:
    """Completes the last word of a command as bash does; the words that it offers."""

    def call(home: Path, *words: str) -> list[str]:
        monkeypatch.setenv("VOLSTREAM_HOME", str(home))
        monkeypatch.setenv("_VOLSTREAM_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(["volstream", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit, match=r"^0$"):
            run([])
        monkeypatch.delenv("_VOLSTREAM_COMPLETE")
        said = capsys.readouterr()
        assert said.err == ""
        return [line.partition(",")[2] for line in said.out.splitlines() if line]

    return call


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", name]) == 0
    assert f"_VOLSTREAM_COMPLETE={name}_complete" in capsys.readouterr().out


def test_names_of_objects_are_completed_by_their_kind(shell: Shell, complete: object) -> None:
    assert callable(complete)
    shell.ok("create-stream", "vs", "--volume", "v")
    assert shell.job("count", "one")[0] == 0
    assert shell.job("`a b`", "one", "--into", "u")[0] == 0
    assert complete(shell.home, "run-job", "c") == ["count"]
    assert complete(shell.home, "refresh", "v") == ["v"]
    assert complete(shell.home, "reset-stream", "v") == ["vs"]
    assert complete(shell.home, "describe", "stream", "vs") == ["vs"]
    assert complete(shell.home, "create-job", "j", "--volume", "v") == ["v"]
    assert complete(shell.home, "list", "failures", "--job", "co") == ["count"]
    assert complete(shell.home, "describe", "batch", "x") == []


def test_a_home_that_cannot_be_read_completes_nothing(tmp_path: Path, complete: object) -> None:
    assert callable(complete)
    assert complete(tmp_path / "none", "run-job", "") == []
    assert not (tmp_path / "none").exists()
    (tmp_path / "volstream.toml").write_text("nonsense")
    (tmp_path / "catalog.db").write_text("not a database")
    assert complete(tmp_path, "run-job", "") == []
