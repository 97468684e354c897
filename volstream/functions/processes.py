"""Python processes of volstream's own: how they start, and how one ends with the other."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import signal
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def end_of(code: int) -> str:
    """Returns how a process ended, by its return code as in ``subprocess``."""
    if code >= 0:
        return f"ended with exit status {code}"
    return f"was killed by {signal.Signals(-code).name if -code in {*signal.Signals} else -code}"


def last_line(words: bytes) -> str:
    """Returns the last line that a process wrote, as the continuation of a sentence; empty if there is none."""
    lines = words.decode("utf-8", "replace").split("\n")
    line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {line.rstrip('.')}" if line else ""


def end_with(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends, because the function may run forever without reading a pipe.

    The parent is the thread that started this process, which is the one that reads its answers.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl was called
        sys.exit(1)


# Starts Python processes of volstream's own: with this interpreter, or with that of an environment, in which
# a function has its own packages.
#
# An environment has no volstream. It is lent what calls functions, by links in a folder, not all packages of
# this interpreter: these would clash. What does not belong here: making environments
# (``volstream.functions.environments``).

#: Packages of this interpreter that an environment without them is lent. Of PySpark only the part that unpickles functions.
_LENT = ("numpy", "pyarrow", "pyspark.cloudpickle")

#: Runs a module, given the folder that comes first in the path, the one that comes last, and the module. Packages in binary
#: form, in the last folder, fit one minor version of Python.
_START = """
import runpy, sys
if sys.version_info < (3, 11):
    sys.exit(f"Functions run with Python 3.11 or newer, and this is {sys.version.split()[0]}.")
sys.path.insert(0, sys.argv[1])
sys.path.append(sys.argv[2])
module = sys.argv[3]
del sys.argv[1:4]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Environment:
    """A Python interpreter with packages of its own.

    Attributes:
        name: the file or folder that defines it, for messages.
        python: path of the interpreter, on each worker.
        archive: name of the folder into which Spark unpacks it on each worker, where the interpreter is then; None: it does not.
    """

    name: str
    python: str
    archive: str | None = None

    def here(self) -> Environment:
        """Returns it as it is on this host."""
        if self.archive is None:
            return self
        from pyspark import SparkFiles

        place = Path(SparkFiles.get(self.archive))
        use_own_interpreter(place)
        return replace(self, python=str(place / "bin" / "python"), archive=None)

    @property
    def missing(self) -> str | None:
        """Why it cannot be used on this host; None: it can."""
        if os.access(self.python, os.X_OK):
            return None
        return (
            f"The environment of {self.name} has no {self.python} on this host. Every worker must see the home, or the "
            "environment, under the same path."
        )


def starting(environment: Environment | None, module: str, folder: str) -> tuple[Sequence[str], Mapping[str, str]]:
    """Returns the command that runs a module of volstream's, without its arguments, and its environment variables.

    Args:
        environment: None: this interpreter.
        folder: where links can be made; the process needs them while it runs.
    """
    root = Path(__file__).parents[2]
    if environment is None:
        # -P: a file in the current folder must not shadow a module.
        command = [sys.executable, "-P", "-m", module]
        if not root.is_file():
            return command, os.environ
        # Brought to a worker that has no volstream, as an archive.
        paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
        return command, {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    own, lent = Path(folder, "volstream"), Path(folder, "lent")
    if root.is_file():
        own.symlink_to(root)
    else:
        _link(own, __name__.partition(".")[0])
    for package in _LENT:
        _link(lent, package)
    binaries = Path(environment.python).parent
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    variables |= {"VIRTUAL_ENV": str(binaries.parent), "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}"}
    # -I: the packages of the user's own folder are not the environment's.
    return [environment.python, "-I", "-c", _START, str(own), str(lent), module], variables


def use_own_interpreter(place: Path) -> None:
    """Gives a virtual environment that was made on another host the interpreter of this one, if the version is the same.

    Does nothing if it has an interpreter, or needs another version. Several processes may do this at once.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    about = place / "pyvenv.cfg"
    if (place / "bin" / "python").exists() or not (place / "lib" / f"python{version}").is_dir() or not about.is_file():
        return
    base = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]  # as the module venv does
    text = re.sub(r"(?m)^home\s*=.*$", f"home = {base.parent}", about.read_text(encoding="utf-8"))
    draft = place / f"{about.name}.{os.getpid()}"
    draft.write_text(text, encoding="utf-8")
    draft.replace(about)
    for name in (f"python{version}", "python3", "python"):
        draft = place / "bin" / f"{name}.{os.getpid()}"
        draft.symlink_to(base)
        draft.replace(place / "bin" / name)


def _link(folder: Path, package: str) -> None:
    """Makes an installed package importable from a folder; and the libraries that its wheel has beside it."""
    top, *inner = package.split(".")
    spec = importlib.util.find_spec(top)  # of a package inside of it, this would import it
    assert spec is not None, "volstream needs it"
    assert spec.origin is not None, "it is a package with code"
    there = Path(spec.origin).parent
    here = folder.joinpath(top, *inner)
    here.parent.mkdir(parents=True, exist_ok=True)
    if (archive := there.parent).is_file():  # as Spark has PySpark
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder, [name for name in packed.namelist() if name.startswith(f"{'/'.join([top, *inner])}/")])
        return
    here.symlink_to(there.joinpath(*inner))
    if (libraries := there.with_name(f"{top}.libs")).is_dir():
        (folder / libraries.name).symlink_to(libraries)
