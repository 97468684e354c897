"""Feeds mutated inputs to targets and reports those answered wrongly."""

from __future__ import annotations

import random
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

import click

from tests.fuzz.mutate import Mutator
from tests.fuzz.targets import Target
from volstream.errors import VolstreamError

#: Of the processor. No input is worth more: with a thousand times less most are read.
_HANGS_SECONDS = 10.0


@dataclass(frozen=True)
class Finding:
    """An input whose answer was neither a result nor one of volstream's errors."""

    target: str
    input: str
    trace: str


class _HangsError(BaseException):
    """Not an Exception, so that nothing under test catches it."""


def fuzz(
    targets: Sequence[Target], seed: str, inputs: int, report: Callable[[Finding], None], maximum: int = 20
) -> dict[str, int]:
    """Feeds ``inputs`` inputs; how many each target got. To be called by the main thread, for what hangs is interrupted.

    Args:
        report: called with each finding; the run ends after ``maximum`` findings.
    """
    chance = random.Random(seed)
    mutators = {one.name: Mutator(f"{seed} {one.name}", one.corpus) for one in targets}
    counts = dict.fromkeys(mutators, 0)
    found: set[str] = set()
    before = signal.signal(signal.SIGPROF, _interrupt)
    try:
        for target in chance.choices(targets, [one.share for one in targets], k=inputs):
            text = mutators[target.name].next()
            counts[target.name] += 1
            trace = _wrong(target, text)
            if trace is None:
                continue
            if trace not in found:  # the same fault is report once
                found.add(trace)
                report(Finding(target.name, text, trace))
            if len(found) >= maximum:
                break
    finally:
        signal.signal(signal.SIGPROF, before)
    return counts


def _wrong(target: Target, text: str) -> str | None:
    """Where in volstream a wrong answer came from, and what it was; None where it was right."""
    signal.setitimer(signal.ITIMER_PROF, _HANGS_SECONDS)
    try:
        target.read(text)
    except (VolstreamError, click.ClickException):
        return None
    except (Exception, _HangsError) as error:  # noqa: BLE001  # whatever it is, it is report
        own = [one for one in traceback.extract_tb(error.__traceback__) if "site-packages" not in one.filename]
        return "".join(traceback.format_list(own[-5:])) + f"{type(error).__name__}: {error}"[:3000]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise _HangsError(f"more than {_HANGS_SECONDS:g} s")
