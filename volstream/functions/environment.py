"""Starts Python processes of volstream's own: with this interpreter, or with that of an environment, in which a function has
its own packages.

An environment has no volstream. It is lent what calls functions, by links in a folder, not all packages of this interpreter:
these would clash. What does not belong here: making environments (``volstream.environments``).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """

    name: str
    python: str

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
    if environment is None:
        # -P: a file in the current folder must not shadow a module.
        return [sys.executable, "-P", "-m", module], os.environ
    own, lent = Path(folder, "volstream"), Path(folder, "lent")
    _link(own, __name__.partition(".")[0])
    for package in _LENT:
        _link(lent, package)
    binaries = Path(environment.python).parent
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    variables |= {"VIRTUAL_ENV": str(binaries.parent), "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}"}
    # -I: the packages of the user's own folder are not the environment's.
    return [environment.python, "-I", "-c", _START, str(own), str(lent), module], variables


def _link(folder: Path, package: str) -> None:
    """Makes an installed package importable from a folder; and the libraries that its wheel has beside it."""
    top, *inner = package.split(".")
    spec = importlib.util.find_spec(top)  # of a package inside of it, this would import it
    assert spec is not None, "volstream needs it"
    assert spec.origin is not None, "it is a package with code"
    there = Path(spec.origin).parent
    here = folder.joinpath(top, *inner)
    here.parent.mkdir(parents=True, exist_ok=True)
    here.symlink_to(there.joinpath(*inner))
    if (libraries := there.with_name(f"{top}.libs")).is_dir():
        (folder / libraries.name).symlink_to(libraries)
