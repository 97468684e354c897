"""Commands run in this process, on their own home, without an engine."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from volstream.cli.main import run


class Shell:
    """Runs commands on a home with a volume ``v`` of two files."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = folder / "home"
        self.files = folder / "files"
        self._capsys = capsys
        self.files.mkdir()
        for name in ("a.txt", "b.txt"):
            (self.files / name).write_text(name)
        (folder / "f.py").write_text(
            "def none() -> None: ...\n"
            "def one(file): ...\n"
            "def two(file, language): ...\n"
            "class Model:\n    def __init__(self, size): ...\n    def __call__(self, file): ...\n"
            "class Deaf:\n    def __call__(self): ...\n"
            "class Sized:\n    def __init__(self, size: int): ...\n    def __call__(self, file): ...\n"
        )
        self.functions = folder / "f.py"
        self.ok("create-volume", "v", str(self.files))

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a command."""
        code = run([*arguments, "--home", str(self.home)])
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    def ok(self, *arguments: str) -> str:
        code, out, err = self(*arguments)
        assert code == 0, err
        return out

    def job(self, name: str, function: str, *options: str) -> tuple[int, str, str]:
        wanted = ["--volume", "v", "--function", f"{self.functions}:{function}", "--returns", "n INT"]
        return self("create-job", name, *wanted, "--into", "t", *options)

    def beside(self, name: str) -> Shell:
        """A shell for another home, which does not exist yet, with the same files and functions."""
        made = copy.copy(self)
        made.home = self.home.with_name(name)
        return made


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)
