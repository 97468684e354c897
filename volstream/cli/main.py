"""The entry point: the group of all commands, imported on demand, and the one place where errors become exit codes."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Mapping

import click

from volstream.base import log
from volstream.base.model.text import like
from volstream.base.processes import disk_error
from volstream.cli.output import Output
from volstream.errors import VolstreamError, plugin_of

#: The commands by purpose, in the order of the help, each with the module of this folder that has it, where its name is
#: ``<command with _>_command``.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "This machine": {"docs": "docs", "setup": "setup", "completion": "setup"},
    "A home": {
        "init": "home",
        "status": "home",
        "doctor": "doctor",
        "daemon": "daemon",
        "console": "console",
        "alert": "alert",
        "ingest-server": "ingest",
        "engine": "engine",
        "env": "env",
        "backup": "backup",
        "restore": "backup",
    },
    "Objects": {
        "create-connection": "connection",
        "create-volume": "volume",
        "create-stream": "stream",
        "create-job": "job",
        "load": "load",
        "alter-volume": "volume",
        "alter-job": "job",
        "list": "objects",
        "describe": "objects",
        "revert": "objects",
        "drop": "objects",
    },
    "Pipelines as code": {"apply": "pipeline", "diff": "pipeline", "export": "pipeline"},
    "Work": {
        "refresh": "volume",
        "run-job": "job",
        "run-source": "source",
        "replay": "job",
        "clear-steps": "job",
        "verify": "verify",
        "heal": "verify",
        "pause": "job",
        "resume": "job",
        "retry": "failures",
        "skip": "failures",
        "reset-stream": "stream",
        "advance-stream": "stream",
        "resolve": "stream",
    },
    "Looking": {
        "try": "file",
        "compare": "compare",
        "logs": "job",
        "explain-file": "file",
        "read-batch": "batch",
        "graph": "pipeline",
        "sql": "sql",
    },
}

_MODULES = {command: module for commands in GROUPS.values() for command, module in commands.items()}

#: What other tools call a command.
_INSTEAD = {
    **{f"{kind}s": f"list {kind}s" for kind in ("volume", "stream", "job", "table", "connection", "function", "source")},
    "batches": "list batches",
    "failures": "list failures",
    "show": "describe KIND NAME",
    "get": "describe KIND NAME",
    "ls": "list KIND",
    "ps": "status",
    "top": "status --watch",
    "watch": "status --watch",
    "ui": "console",
    "serve": "daemon",
    "start": "daemon",
    "query": "sql 'SELECT ...'",
    "run": "run-job JOB",
    "rm": "drop KIND NAME",
    "delete": "drop KIND NAME",
    "test": "try FILE.py:FUNC PATH",
    "version": "--version",
}

#: When Python looks for cycles of objects: after 20,000 instead of 700 new ones. A tenth of a short command was spent on it.
_COLLECTING = (20_000, 20, 20)

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


#: Options that a command takes also before its name.
_EVERYWHERE = ("--home", "--format")


class _Commands(click.Group):
    """All commands, each imported when it is used or its help is shown."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        module = _MODULES.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(
            importlib.import_module(f"volstream.cli.{module}"), f"{cmd_name.replace('-', '_')}_command"
        )
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Takes the options of all commands also before the command."""
        leading, rest, at = list[str](), list(args), 0
        while rest and rest[0].partition("=")[0] in _EVERYWHERE:
            count = 1 if "=" in rest[0] else 2
            leading, rest = [*leading, *rest[:count]], rest[count:]
        command: click.Command | None = self
        while isinstance(command, click.Group) and at < len(rest) and not rest[at].startswith("-"):
            command, at = command.get_command(ctx, rest[at]), at + 1
        return super().parse_args(ctx, [*rest[:at], *leading, *rest[at:]])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in GROUPS.items():
            with formatter.section(title):
                commands = [(name, self.get_command(ctx, name)) for name in names]
                formatter.write_dl([(name, cmd.get_short_help_str(limit=1000)) for name, cmd in commands if cmd is not None])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            instead = f"Run: volstream {_INSTEAD[args[0]]}" if args[0] in _INSTEAD else like(args[0], _MODULES)
            raise click.UsageError(f"{error.message} {instead}".rstrip(), ctx) from None


@click.group(cls=_Commands, context_settings=_SETTINGS)
@click.version_option(None, "--version", "-V", package_name="volstream", message="%(version)s")
def volstream() -> None:
    """Run a Python function on every new or changed file of a directory or bucket, exactly once.

    \b
    volstream create-volume photos ~/Pictures --pattern '*.jpg'
    volstream create-job sizes --volume photos --function job.py:size --into sizes --on-change
    volstream daemon
    """


def main(arguments: list[str] | None = None) -> None:
    """Runs a command and ends the process with its exit code."""
    gc.set_threshold(*_COLLECTING)
    log.configure("warning")
    code = run(sys.argv[1:] if arguments is None else arguments)
    gc.freeze()  # Python would search all objects for cycles before it ends, which takes a short command a tenth of a second
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Runs a command and returns its exit code; prints errors to standard error."""
    output = Output.for_errors(arguments)
    try:
        code = volstream(arguments, prog_name="volstream", standalone_mode=False, obj={})
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        output.message("Interrupted.")
        return 130
    except BrokenPipeError:  # the reader of the output exited, for example head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except VolstreamError as error:
        output.error(error)
        return error.exit_code
    except Exception as error:  # noqa: BLE001  # the outermost handler: anything else is a bug, except a disk's state
        disk = disk_error(error, error.filename or "a file") if isinstance(error, OSError) else None
        if disk is not None:
            output.error(disk)
            return disk.exit_code
        import traceback

        output.message(traceback.format_exc().rstrip())
        culprit = plugin_of(error) or "volstream"
        output.message(f"This is a bug in {culprit}; please report it with the lines above.")
        return 1
    return code if isinstance(code, int) else 0  # click returns the code of an Exit, and what a command returns
