"""Imports a function to find its declarations, in this process or a separate one.

The import runs the user's code, which may end the process or never return.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from volstream.base.model.units import format_duration
from volstream.errors import FunctionLoadError, VolstreamError
from volstream.functions.processes import end_of, end_with, last_line, starting
from volstream.functions.schema import declaration_of, of_declaration
from volstream.functions.signature import check_signature
from volstream.functions.source import FunctionSource

#: Time limit of an import in a separate process.
_MAX_SECONDS = 300.0


def declared_by(source: FunctionSource, arguments: Mapping[str, str], *, columns: bool) -> pa.Schema | None:
    """Imports a function and returns its declared columns, or None if it declares none or ``columns`` is
    False.

    A function with an environment is imported there.

    Raises:
        FunctionLoadError: it cannot be imported, or cannot be called with a file and these arguments.
        InvalidValueError: the declaration does not describe columns.
    """
    if source.environment is not None:
        return declared_apart(source, arguments, columns=columns)
    return of_declaration(_declaration(source, arguments, columns))


def declared_apart(
    source: FunctionSource, arguments: Mapping[str, str], *, columns: bool, max_seconds: float = _MAX_SECONDS
) -> pa.Schema | None:
    """Like :func:`declared_by`, in a separate process, for callers that must survive the function's
    import."""
    environment = source.environment
    if environment is not None and environment.missing is not None:
        raise FunctionLoadError(environment.missing)
    with tempfile.TemporaryDirectory(prefix="volstream-") as folder:
        answer, errors = Path(folder, "answer"), Path(folder, "errors")
        command, variables = starting(environment, "volstream.functions.declared", folder)
        try:
            with errors.open("wb") as stderr:
                process = subprocess.run(
                    [*command, str(os.getpid()), str(answer)],
                    input=pickle.dumps((source, arguments, columns)),
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    timeout=max_seconds,
                    check=False,
                    env=variables,
                )
        except subprocess.TimeoutExpired:
            raise FunctionLoadError(
                f"The module {source.module} was not imported within {format_duration(max_seconds)}."
            ) from None
        if not answer.exists():
            raise FunctionLoadError(
                f"The module {source.module} cannot be imported: its process {end_of(process.returncode)}"
                f"{last_line(errors.read_bytes())}."
            )
        result = pickle.loads(answer.read_bytes())
    if isinstance(result, VolstreamError):
        raise result
    return of_declaration(result)


def _declaration(source: FunctionSource, arguments: Mapping[str, str], columns: bool) -> str | pa.Schema | None:
    function = source.load()
    check_signature(function, arguments)
    return declaration_of(function) if columns else None


def _answer(place: Path) -> None:
    source, arguments, columns = pickle.load(sys.stdin.buffer)
    try:
        result = _declaration(source, arguments, columns)
    except VolstreamError as error:
        result = error
    place.write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    _answer(Path(sys.argv[2]))
    os._exit(0)  # threads of the function would keep the process alive
