"""Commands import only what they use: every call from cron or a shell pays for their imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: What takes a tenth of a second or more.
LARGE = ("sqlalchemy", "pydantic", "pyarrow", "numpy", "deltalake", "pandas", "pyspark", "sqlglot", "starlette", "rich")


def imported(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint(*(name for name in {LARGE} if name in sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return {*done.stdout.split()}


def test_helps_and_wrong_usage_import_nothing_large() -> None:
    code = (
        "import sys, click; from volstream.cli.main import volstream, GROUPS\n"
        "context = click.Context(volstream)\n"
        "for names in GROUPS.values():\n"
        "    for name in names: volstream.get_command(context, name).get_help(context)"
    )
    assert imported(code) == set()


@pytest.mark.parametrize(
    "module", ["volstream.ops.inspection.status", "volstream.jobs.runs.run", "volstream.changes.directory.keeper"]
)
def test_looking_whether_there_is_something_to_do_imports_no_spark_and_no_parser(module: str) -> None:
    assert imported(f"import sys, {module}").isdisjoint({"pandas", "pyspark", "sqlglot", "starlette"})
