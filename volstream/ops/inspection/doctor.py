"""Checks everything that a home or a volume needs, and tells how to fix problems.

Each check queries the component itself and changes nothing, except for the canary: an object that is written,
awaited in the directory table, and removed again.
"""

from __future__ import annotations

import ast
import functools
import inspect
import shlex
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from pydantic import BaseModel, SecretStr

from volstream.base.config import Settings
from volstream.base.definitions import QueueType, Volume
from volstream.base.definitions.objects import DEFAULT_VIRTUAL_CLUSTER
from volstream.base.model.code import parsed
from volstream.base.model.names import Name
from volstream.base.model.paths import FileInfo, printable
from volstream.base.model.text import counted
from volstream.base.model.units import about, format_duration
from volstream.base.model.work import Check, CheckState
from volstream.base.processes import disk_error, host_of
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.leases import of_volume
from volstream.changes.streams.sources import VolumeSource
from volstream.errors import CatalogError, DependencyError, InvalidStateError, StorageError, VolstreamError
from volstream.files.providers.access import Access
from volstream.files.providers.base import BucketPlace, provider_of
from volstream.files.queues.base import QueueState, SelfDescribing
from volstream.files.storage.base import ObjectStore, Writable
from volstream.files.volumes.access import access_of, queue_of, store_of
from volstream.jobs.batches import handshake
from volstream.jobs.batches.handshake import Answer
from volstream.ops.inspection.status import health, problems
from volstream.spark.engine.client import engine_status
from volstream.spark.errors import map_spark_errors
from volstream.spark.tasks import given_up

if TYPE_CHECKING:
    from volstream.home import Home

# The settings of a home for display: secrets masked, each with its meaning.

#: Replaces a value that may contain a secret.
MASK = "********"


@dataclass(frozen=True)
class ShownSetting:
    """A setting: its value, whether it is the default, and its meaning."""

    setting: str
    value: Any
    default: bool
    meaning: str


def shown_settings(settings: Settings, catalog: str) -> list[ShownSetting]:
    """Returns all settings without secrets.

    Args:
        catalog: the catalog's URL without its password.
    """
    described = setting_descriptions()
    return [
        ShownSetting(
            setting=name,
            value=catalog if name == "catalog_url" else _masked(getattr(settings, name), hidden=not field.repr),
            default=name != "home" and getattr(settings, name) == field.default,
            meaning=described.get(name, "The folder of the home." if name == "home" else ""),
        )
        for name, field in Settings.model_fields.items()
    ]


@functools.cache
def setting_descriptions() -> Mapping[str, str]:
    """Returns the text below each setting in the source, on one line."""
    (tree,) = parsed(inspect.getsource(Settings)).body
    assert isinstance(tree, ast.ClassDef), "it is a class"
    return dict(_pairs(tree))


def _pairs(tree: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for pair in pairwise(tree.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                yield name, " ".join(str(text).split()).replace("``", "`")


def _masked(value: Any, *, hidden: bool) -> Any:
    """Returns a value without secrets. The names in a mapping stay, because only its values may be secret."""
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, BaseModel):
        return {name: _masked(getattr(value, name), hidden=not field.repr) for name, field in type(value).model_fields.items()}
    if isinstance(value, Mapping):
        return {key: MASK if hidden else _masked(item, hidden=False) for key, item in value.items()}
    if hidden and value:
        return MASK
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return [str(item) for item in value] if isinstance(value, tuple | list) else str(value)


# Checks an external Spark, for ``doctor --cluster``: its settings, and each host of its workers.

_DOCS = "See docs/operations/cluster.md, Spark elsewhere."


def examine_cluster(home: Home) -> Iterator[Check]:
    """Checks the server of ``spark_remote``, and a task in each of its slots.

    Raises:
        InvalidStateError: the home has its own engine.
    """
    if not home.settings.spark_remote:
        raise InvalidStateError("The home has a Spark of its own.", "--cluster is for a home with spark_remote.")
    try:
        with map_spark_errors(), home.gateway.fresh() as session:
            problems_of_server = handshake.setting_problems(session)
            yield Check("server", CheckState.OK, f"Spark {session.version} answers")
            yield from (Check("settings", CheckState.FAILED, text, _DOCS) for text in problems_of_server)
            for text in handshake.missing_parts(session, home.warehouse):
                yield Check("settings", CheckState.WARNING, text, _DOCS)
            with given_up(session, home.settings.executor_wait_seconds):
                answers = handshake.ask(session, handshake.places_of(home.catalog, home.warehouse))
    except VolstreamError as error:
        yield Check("server", CheckState.FAILED, error.message, error.remedy)
        return
    by_host = defaultdict[str, list[Answer]](list)
    for answer in answers:
        by_host[answer.host].append(answer)
    for host, of_host in sorted(by_host.items()):
        problems = sorted({text for answer in of_host for text in answer.problems})
        yield from (Check("workers", CheckState.FAILED, text, _DOCS) for text in problems)
        if not problems:
            first = of_host[0]
            text = f"{counted(len(of_host), 'task')} ran on {host} as user {first.user} with Python {first.python}"
            yield Check("workers", CheckState.OK, text)


#: Number of listed files that are tried until one exists and can be read.
_TRIED = 10

#: Time limit of a canary.
_CANARY_SECONDS = 60.0

#: Time that a daemon on this host has to respond.
_ANSWER_SECONDS = 2.0

#: With a shorter timeout, messages could be redelivered while their effect is being committed, if this
#: process stalls.
_LEAST_VISIBILITY = 30.0


def examine(home: Home, volume_name: str | None = None, *, canary: bool = False) -> Iterator[Check]:
    """Checks the home, and a volume, step by step.

    Args:
        canary: write an object into the volume and time its arrival in the directory; the volume's jobs see
            it as well.

    Raises:
        NotFoundError: no such volume.
    """
    volume = home.catalog.volumes.get(Name.parse(volume_name)) if volume_name is not None else None
    yield from _home(home)
    if volume is not None:
        yield from _ExaminedVolume(home, volume).checks(canary=canary)


def _home(home: Home) -> Iterator[Check]:
    from volstream.spark.jvm import install

    yield home_check(home.settings.home)
    if not home.settings.spark_remote:
        yield _try("java", lambda: "Java {0.major}, {0.executable}".format(install.find_java()))
        yield _try("jars", lambda: f"{counted(len(install.engine_jars(home.settings)), 'file')} installed")
    yield _try("catalog", lambda: f"{home.catalog.database.describe()}, {counted(len(home.catalog.volumes.list()), 'volume')}")
    yield _try("warehouse", lambda: _writes(home.warehouse))
    status = engine_status(home.settings)
    if status is not None and status.kind == "daemon":
        yield Check("daemon", CheckState.OK, f"{status.state}, pid {status.pid}, up {about(status.up_seconds)}")
    elif home.settings.spark_remote and _answers(home.settings.http_port):  # such a daemon does not own the home
        yield Check("daemon", CheckState.OK, f"answers on port {home.settings.http_port}")
    else:
        fix = "Run: volstream daemon (or run refresh and run-job from a scheduler)."
        yield Check("daemon", CheckState.WARNING, "No daemon is running in this home.", fix)
    try:
        found = problems(health(home, streams=True), {})
    except CatalogError:  # reported above
        return
    for problem in found:
        state = CheckState.FAILED if problem.severe else CheckState.WARNING
        yield Check(f"{problem.kind} {problem.name}".rstrip(), state, problem.why, problem.do)


def _answers(port: int) -> bool:
    try:
        urlopen(f"http://127.0.0.1:{port}/healthz", timeout=_ANSWER_SECONDS).close()
    except OSError:  # also for an error response
        return False
    return True


def home_check(home: Path) -> Check:
    """Checks that only the user can access the home.

    Others may be able to access an old home, or one created manually.
    """
    if home.is_dir() and home.stat().st_mode & 0o077:
        text = f"{home} can be accessed by other users of this machine."
        return Check("home", CheckState.WARNING, text, f"Run: chmod 700 {shlex.quote(str(home))}")
    return Check("home", CheckState.OK, str(home))


def _writes(warehouse: str) -> str:
    from volstream.tables.delta.places import make_folder, try_writing

    try:
        make_folder(warehouse)
        try_writing(warehouse)
    except OSError as error:
        unwritable = DependencyError(f"{warehouse} cannot be written: {error}.", "Correct the setting `warehouse`.")
        raise disk_error(error, warehouse) or unwritable from None
    return warehouse


class _ExaminedVolume:
    """A volume under examination."""

    def __init__(self, home: Home, volume: Volume) -> None:
        self._home = home
        self._volume = volume
        self._provider = provider_of(volume.location)
        self._found: list[FileInfo] = []

    def checks(self, *, canary: bool) -> Iterator[Check]:
        credentials = self._credentials()
        if credentials is not None:
            yield credentials
            if credentials.state is CheckState.FAILED:
                return
        store = store_of(self._volume, self._home.catalog, self._home.settings)
        listing = _try("listing", lambda: self._listing(store))
        yield listing
        if self._found:
            yield _try("reading", lambda: self._reading(store))
        else:
            yield Check("reading", CheckState.SKIPPED, "There is no file to read.")
        yield from self._queue()
        yield self._check_notifications()
        yield self._writer()
        yield self._completeness()
        yield self._rejected()
        if canary and listing.state is CheckState.OK:
            yield self._canary(store)

    def _credentials(self) -> Check | None:
        """Checks that keys exist, that the role can be assumed, and that keys for tasks can be obtained."""
        provider = self._provider
        if provider is None:
            return None

        def ask() -> str:
            access = self._access()
            tasks = provider.for_tasks(access, self._volume.location)
            given = "signing keys of a day" if tasks.days else f"a temporary key of {tasks.keys.id}" if tasks.keys else "no keys"
            return f"{access.credentials}, {access.role_arn or 'no role'}; tasks get {given}"

        return _try("credentials", ask)

    def _access(self) -> Access:
        access = access_of(self._volume, self._home.catalog, self._home.settings)
        assert access is not None, "a provider needs access"
        return access

    def _listing(self, store: ObjectStore) -> str:
        listed = store.list("", self._volume.selection)
        self._found = [entry for entry in islice(listed, _TRIED) if isinstance(entry, FileInfo)]
        if not self._found:
            return f"{self._volume.location} can be listed, and has no file that the volume selects"
        return f"{self._volume.location} can be listed; the first file is {printable(self._found[0].relative_path)}"

    def _reading(self, store: ObjectStore) -> str:
        for info in self._found:
            path = info.relative_path
            if store.head(path) is None:
                continue  # deleted meanwhile
            with store.open(path) as file:
                file.read(1)
            return f"{printable(path)} can be accessed and read"
        raise StorageError("None of the listed files still exists.", "Is the volume being emptied?")

    def _queue(self) -> Iterator[Check]:
        queue = queue_of(self._volume, self._home.catalog, self._home.settings)
        if not isinstance(queue, SelfDescribing):
            kind = self._volume.queue_type
            if kind.is_plugin:
                yield Check("queue", CheckState.SKIPPED, f"{kind}: its plug-in does not report the queue's state")
            else:
                yield Check("queue", CheckState.OK, f"{kind}: no external service needed")
            return
        states: list[QueueState] = []

        def ask() -> str:
            state = queue.describe()
            states.append(state)
            counts = "" if state.waiting is None else f": {state.waiting} waiting"
            counts += "" if state.in_flight is None else f", {state.in_flight} in flight"
            return f"{self._volume.queue_name}{counts}"

        yield _try("queue", ask)
        for state in states:
            yield from self._queue_settings(state)

    def _queue_settings(self, state: QueueState) -> Iterator[Check]:
        if state.retention_seconds is not None and state.retention_seconds < 2 * self._home.settings.listing_seconds:
            text = f"Messages are lost after {format_duration(state.retention_seconds)}."
            fix = "Raise the retention to days: messages wait in the queue while no daemon is running."
            yield Check("retention", CheckState.WARNING, text, fix)
        if state.visibility_seconds is not None and state.visibility_seconds < _LEAST_VISIBILITY:
            text = f"Messages are redelivered after {format_duration(state.visibility_seconds)}."
            fix = "Set the queue's visibility time-out to a minute."
            yield Check("visibility", CheckState.WARNING, text, fix)
        if state.dead_letter_queue == "":
            fix = "Add one: otherwise a message that always fails is retried until it expires."
            yield Check("dead letters", CheckState.WARNING, "The queue has no dead-letter queue.", fix)

    def _check_notifications(self) -> Check:
        """Checks that the bucket reports its changes to the queue."""
        provider, type_ = self._provider, self._volume.queue_type
        if type_ is QueueType.KAFKA or type_.is_plugin:
            fix = "Look at the store's notifications, or use --canary."
            return Check("wiring", CheckState.SKIPPED, f"A queue of the type {type_} does not know who sends to it.", fix)
        if provider is None or type_ != provider.queue_type:
            return Check("wiring", CheckState.OK, "not needed")
        place = BucketPlace.of(self._volume.location)
        return provider.check_wiring(self._access(), place, self._volume.queue_name or "")

    def _writer(self) -> Check:
        name = of_volume(self._volume.id)
        holder = next((lease for lease in self._home.catalog.leases.held() if lease.name == name), None)
        trouble = self._home.catalog.conditions.cause(ConditionKind.VOLUME, self._volume.id)
        if holder is not None and trouble is not None:
            fix = "It is retried until it succeeds; see the daemon's log for details."
            return Check("writer", CheckState.FAILED, trouble, fix)
        if holder is not None:
            return Check("writer", CheckState.OK, f"{holder.purpose}, on {host_of(holder.owner)}")
        cluster = self._volume.virtual_cluster
        option = "" if cluster == DEFAULT_VIRTUAL_CLUSTER else f" --virtual-cluster {cluster}"
        fix = f"Run: volstream daemon{option}."
        return Check("writer", CheckState.WARNING, "No daemon is keeping the volume.", fix)

    def _completeness(self) -> Check:
        listing = next(iter(self._home.catalog.refreshes.reconciles(self._volume.id)), None)
        if listing is None:
            fix = f"Run: volstream refresh {self._volume.name}."
            return Check("completeness", CheckState.WARNING, "The volume was never listed.", fix)
        current = self._home.catalog.volumes.by_id(self._volume.id)
        if current is not None and current.held_removals:
            text = f"{counted(current.held_removals, 'file')} missing from the store; the removal is on hold."
            fix = f"If they were deleted, run: volstream refresh {self._volume.name} --accept-removals."
            return Check("completeness", CheckState.WARNING, text, fix)
        corrected = listing.added_by_listing + listing.changed_by_listing + listing.removed_by_listing
        unreported = corrected - listing.late_events
        text = (
            f"{listing.began_on:%F %T}: {counted(listing.listed, 'file')} listed: {listing.added_by_listing} added, "
            f"{listing.changed_by_listing} changed, {listing.removed_by_listing} removed; {listing.late_events} late events"
        )
        # Without an event source, files regularly arrive by listings.
        if unreported <= 0 or listing.cause == "first-listing" or not self._volume.queue_type.has_events:
            return Check("completeness", CheckState.OK, text)
        text += f": {counted(unreported, 'change')} came without an event."
        fix = "If a daemon was running all the time, events are being lost: check the wiring, and its prefix and event types."
        return Check("completeness", CheckState.WARNING, text, fix)

    def _rejected(self) -> Check:
        count = self._home.catalog.refreshes.rejected_count(self._volume.id)
        if not count:
            return Check("rejected", CheckState.OK, "none")
        text = f"{counted(count, 'message or name', 'messages or names')} could not be used."
        return Check("rejected", CheckState.WARNING, text, "See: volstream list rejected.")

    def _canary(self, store: ObjectStore) -> Check:
        path = f"volstream-canary-{uuid.uuid4().hex[:12]}"
        suffixes = [Path(glob).suffix for glob in self._volume.patterns] or [""]
        path = next((path + suffix for suffix in suffixes if self._volume.selection.accepts(path + suffix)), "")
        if not path or not isinstance(store, Writable):
            return Check("canary", CheckState.SKIPPED, "Found no free name that the volume selects.")
        if self._volume.queue_type is QueueType.NONE:
            return Check("canary", CheckState.SKIPPED, "The volume has no event source.")
        began = time.monotonic()
        try:
            store.write(path, b"canary\n")
        except VolstreamError as error:
            return Check("canary", CheckState.SKIPPED, f"Writing is not permitted: {error.message}")
        try:
            while time.monotonic() - began < _CANARY_SECONDS:
                if self._is_there(path):
                    return Check("canary", CheckState.OK, f"in the directory after {time.monotonic() - began:.1f} s")
                time.sleep(0.1)
        finally:
            store.remove(path)
        text = f"It did not appear in the directory within {_CANARY_SECONDS:.0f} s."
        fix = "Is a daemon running, and does the bucket notify the volume's queue?"
        return Check("canary", CheckState.FAILED, text, fix)

    def _is_there(self, path: str) -> bool:
        directory = VolumeSource(self._home.catalog, self._home.warehouse, self._volume.id).find()
        return directory is not None and bool(directory.find([path]).num_rows)


def _try(what: str, ask: Callable[[], str]) -> Check:
    try:
        return Check(what, CheckState.OK, ask())
    except VolstreamError as error:
        return Check(what, CheckState.FAILED, error.message, error.remedy)
