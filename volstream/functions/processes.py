"""Python processes of volstream: how they start, and how a child ends with its parent."""

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


def last_line(output: bytes) -> str:
    """Returns the last line of a process's output, as the continuation of a sentence, or an empty text."""
    lines = output.decode("utf-8", "replace").split("\n")
    line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {line.rstrip('.')}" if line else ""


def end_with(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends, because the function may run forever without
    reading a pipe.

    The parent is the thread that started this process, which also reads its replies.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl was called
        sys.exit(1)


# Starts volstream's Python processes with this interpreter, or with that of an environment, in which a
# function has separate packages.
#
# An environment does not contain volstream. It gets links to the packages that call functions, but not to all
# packages of this interpreter, which would conflict. Environments are built in
# ``volstream.functions.environments``.

#: Packages of this interpreter that an environment without them gets. Of PySpark, only the part that
#: unpickles functions.
_LINKED = ("numpy", "pyarrow", "pyspark.cloudpickle")

#: Runs a module, given the folder that comes first in the path, the folder that comes last, and the module.
#: Binary packages in the last folder fit one minor version of Python.
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
    """A Python interpreter with a separate set of packages.

    Attributes:
        name: the file or folder that defines it, for messages.
        python: path of the interpreter, on each worker.
        archive: name of the folder into which Spark unpacks it on each worker, if it does. The interpreter is
            then in it.
    """

    name: str
    python: str
    archive: str | None = None

    def here(self) -> Environment:
        """Returns the environment for this host."""
        if self.archive is None:
            return self
        from pyspark import SparkFiles

        place = Path(SparkFiles.get(self.archive))
        use_own_interpreter(place)
        return replace(self, python=str(place / "bin" / "python"), archive=None)

    @property
    def missing(self) -> str | None:
        """Why the environment cannot be used on this host, or None."""
        if os.access(self.python, os.X_OK):
            return None
        return (
            f"The environment of {self.name} has no {self.python} on this host. Every worker must see the home, or the "
            "environment, under the same path."
        )


def starting(environment: Environment | None, module: str, folder: str) -> tuple[Sequence[str], Mapping[str, str]]:
    """Returns the command that runs a module of volstream, without its arguments, and its environment
    variables.

    Args:
        environment: this interpreter by default.
        folder: where links can be created. The process needs them while it runs.
    """
    root = Path(__file__).parents[2]
    if environment is None:
        # -P keeps a file in the current folder from shadowing a module.
        command = [sys.executable, "-P", "-m", module]
        if not root.is_file():
            return command, os.environ
        # volstream is an archive, shipped to a worker without it.
        paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
        return command, {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    ours, linked = Path(folder, "volstream"), Path(folder, "lent")
    if root.is_file():
        ours.symlink_to(root)
    else:
        _link(ours, __name__.partition(".")[0])
    for package in _LINKED:
        _link(linked, package)
    binaries = Path(environment.python).parent
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    variables |= {"VIRTUAL_ENV": str(binaries.parent), "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}"}
    # -I excludes the packages in the user's own folder, which are not the environment's.
    return [environment.python, "-I", "-c", _START, str(ours), str(linked), module], variables


def use_own_interpreter(place: Path) -> None:
    """Gives a virtual environment from another host the interpreter of this host, if the version is the same.

    Does nothing if the environment has an interpreter, or needs another version. Several processes may do
    this at once.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    config = place / "pyvenv.cfg"
    if (place / "bin" / "python").exists() or not (place / "lib" / f"python{version}").is_dir() or not config.is_file():
        return
    base = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]  # as the module venv does
    text = re.sub(r"(?m)^home\s*=.*$", f"home = {base.parent}", config.read_text(encoding="utf-8"))
    draft = place / f"{config.name}.{os.getpid()}"
    draft.write_text(text, encoding="utf-8")
    draft.replace(config)
    for name in (f"python{version}", "python3", "python"):
        draft = place / "bin" / f"{name}.{os.getpid()}"
        draft.symlink_to(base)
        draft.replace(place / "bin" / name)


def _link(folder: Path, package: str) -> None:
    """Makes an installed package importable from a folder, with the libraries that its wheel has beside
    it."""
    top, *inner = package.split(".")
    spec = importlib.util.find_spec(top)  # for a subpackage, this would import the package
    assert spec is not None, "volstream needs it"
    assert spec.origin is not None, "it is a package with code"
    source = Path(spec.origin).parent
    target = folder.joinpath(top, *inner)
    target.parent.mkdir(parents=True, exist_ok=True)
    if (archive := source.parent).is_file():  # as PySpark in Spark
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder, [name for name in packed.namelist() if name.startswith(f"{'/'.join([top, *inner])}/")])
        return
    target.symlink_to(source.joinpath(*inner))
    if (libraries := source.with_name(f"{top}.libs")).is_dir():
        (folder / libraries.name).symlink_to(libraries)
