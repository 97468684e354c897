"""Queues, stores, providers, readers of files and receivers of alerts of other packages, found by their entry
points.

Looked for only where a name is not volstream's own, so a package cannot replace what volstream has, and none
is imported before it is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from volstream.errors import PLUGINS, DependencyError, VolstreamError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Group(StrEnum):
    """What packages can add: a group of entry points."""

    QUEUES = "volstream.queues"  #: a type of queue: makes an ``EventQueue`` of a ``QueueSpec``
    STORES = "volstream.stores"  #: a scheme of URIs: makes an ``ObjectStore`` of a location
    PROVIDERS = "volstream.providers"  #: a scheme of URIs: makes a ``Provider``, with its stores and queues
    READERS = "volstream.readers"  #: a format, and extension, of files: reads the rows of one
    ALERTS = "volstream.alerts"  #: a kind of receiver: delivers a payload with options, within seconds


def has(group: Group, name: str) -> bool:
    """True if an installed package has this entry point. Does not import the package."""
    return _point(group, name) is not None


def names(group: Group) -> Sequence[str]:
    """Returns the names of the entry points of installed packages, sorted. Does not import the packages."""
    from importlib.metadata import entry_points  # late, as in _point

    return sorted(entry_points(group=group.value).names)


def call(group: Group, name: str, *arguments: Any) -> Any:
    """Loads the entry point, which :func:`has` found, and calls it; returns the result.

    Raises:
        VolstreamError: as the package raises it.
        DependencyError: the package cannot be imported, or raises another error, which the message names with
            the package.
    """
    point = _point(group, name)
    assert point is not None, "it was found"
    PLUGINS[point.module.partition(".")[0]] = _package_of(point)
    function = _named(point, "cannot be loaded", point.load)
    return _named(point, "failed", lambda: function(*arguments))


def _named(point: EntryPoint, what: str, act: Callable[[], T]) -> T:
    try:
        return act()
    except VolstreamError:
        raise
    except (Exception, SystemExit) as error:  # of other people's code
        package = _package_of(point)
        raise DependencyError(
            f"The package {package}, which adds {point.name!r} to {point.group}, {what}: {type(error).__name__}: {error}",
            f"Correct the package {package}, or uninstall it.",
        ) from error


def _package_of(point: EntryPoint) -> str:
    return point.module if point.dist is None else point.dist.name


@functools.cache
def _point(group: Group, name: str) -> EntryPoint | None:
    """Returns an entry point.

    Of packages that have the same one, the first on the path is taken, as in imports.
    """
    from importlib.metadata import entry_points  # late: it takes a while, and most homes have no plug-ins

    return next(iter(entry_points(group=group.value, name=name)), None)
