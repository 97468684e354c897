"""The options for when a job runs, shared by the commands that create jobs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from volstream.cli.options import DURATION
from volstream.model.objects import Trigger, TriggerKind

F = TypeVar("F", bound=Callable[..., Any])


def triggers(function: F) -> F:
    """Adds ``--on-change``, ``--every`` and ``--cron``, and calls the command with a ``trigger``."""

    @click.option("--on-change", is_flag=True, help="Run as soon as files change.")
    @click.option("--every", type=DURATION, metavar="30s", help="Run periodically.")
    @click.option("--cron", metavar="'*/5 * * * *'", help="Run on a schedule.")
    @functools.wraps(function)
    def command(*given: Any, on_change: bool, every: float | None, cron: str | None, **options: Any) -> Any:
        return function(*given, trigger=trigger_of(on_change, every, cron), **options)

    return command  # type: ignore[return-value]  # the same command with other options


def trigger_of(on_change: bool, every: float | None, cron: str | None) -> Trigger:
    """Returns the trigger for the options' values. Raises a usage error for more than one."""
    if (on_change, every is not None, cron is not None).count(True) > 1:
        raise click.UsageError("--on-change, --every and --cron are mutually exclusive.")
    if on_change:
        return Trigger(TriggerKind.ON_CHANGE)
    if every is not None:
        return Trigger(TriggerKind.EVERY, every=every)
    return Trigger(TriggerKind.CRON, cron=cron) if cron is not None else Trigger()


def says(trigger: Trigger) -> str:
    """Describes when a job runs."""
    match trigger.kind:
        case TriggerKind.ON_CHANGE:
            return "on change, under the daemon"
        case TriggerKind.EVERY:
            return f"every {trigger.every:g} s, under the daemon"
        case TriggerKind.CRON:
            return f"at {trigger.cron}, under the daemon"
        case _:
            return "on demand: volstream run-job"
