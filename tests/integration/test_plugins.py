"""Plug-ins: the sample in examples/, found by its metadata without an installation; and what is wrong with others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins import SAMPLE, pretend_installed, sample_path
from volstream.base import plugins
from volstream.base.config import Receiver
from volstream.base.definitions import QueueType
from volstream.base.definitions.objects import _QUEUE_TYPE
from volstream.base.model.paths import scheme_of
from volstream.errors import DependencyError, InvalidValueError, reason_of
from volstream.files.queues import open_queue
from volstream.files.queues.base import QueueSpec
from volstream.files.queues.in_process import SilentQueue
from volstream.files.storage import normalise_location, open_store
from volstream.ops.receivers import DeliveryError, deliver

_BROKEN = """
import no_such_package
"""

_LATE = """
class Queue:
    def __init__(self, spec): pass
    def receive(self, limit, wait_seconds): raise KeyError("body")
"""

_RAISING = """
class Odd:
    def __init__(self, *arguments):
        raise ZeroDivisionError(f"not this time, {arguments[1:2]}")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path of this process, with packages that do not work."""
    (tmp_path / "broken_plugin.py").write_text(_BROKEN)
    (tmp_path / "raising_plugin.py").write_text(_RAISING)
    groups = ("volstream.queues", "volstream.stores", "volstream.alerts")
    pretend_installed(tmp_path, "acme-broken", {group: {"broken": "broken_plugin:Queue"} for group in groups})
    (tmp_path / "late_plugin.py").write_text(_LATE)
    pretend_installed(tmp_path, "acme-late", {"volstream.queues": {"late": "late_plugin:Queue"}})
    own = {"none": "raising_plugin:Odd", "file": "raising_plugin:Odd", "raising": "raising_plugin:Odd"}
    pretend_installed(tmp_path, "acme-raising", dict.fromkeys(groups, own))
    monkeypatch.syspath_prepend(tmp_path)
    plugins._point.cache_clear()
    yield tmp_path
    plugins._point.cache_clear()


@pytest.mark.parametrize("name", ["broken", "raising"])
def test_a_plug_in_that_does_not_work_is_named_in_one_sentence(installed: Path, name: str) -> None:
    for use in (
        lambda: open_queue(name, QueueSpec("/")),
        lambda: open_store(f"{name}://x"),
        lambda: deliver(Receiver.model_validate({"kind": name}), {}),
    ):
        with pytest.raises(DependencyError, match=f"The package acme-{name}, which adds '{name}' to volstream") as error:
            use()
        assert "\n" not in error.value.message
        assert error.value.remedy
    assert normalise_location(f"{name}://x/") == f"{name}://x", "names are known without the code"


def test_a_plug_in_that_fails_later_is_named_as_well(installed: Path) -> None:
    queue = open_queue("late", QueueSpec("/"))
    with pytest.raises(KeyError) as caught:
        queue.receive(1, 0.0)
    assert reason_of(caught.value) == "The package acme-late failed: KeyError: 'body'"


def test_a_plug_in_does_not_replace_what_volstream_has(installed: Path) -> None:
    assert isinstance(open_queue("none", QueueSpec("/")), SilentQueue)
    assert scheme_of(open_store("file:///x").url("a")) == "file"


def test_what_no_package_has_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="'pigeons' are not available"):
        open_queue("pigeons", QueueSpec("/"))
    with pytest.raises(InvalidValueError, match="'pigeons' are not supported"):
        open_store("pigeons://x")
    with pytest.raises(InvalidValueError, match="no receiver kind 'pigeons'"):
        deliver(Receiver.model_validate({"kind": "pigeons"}), {})


def test_a_misspelt_type_is_compared_with_those_of_packages(installed: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"Did you mean 'raising'\? Give one of .*late.*raising"):
        _QUEUE_TYPE.parse("raisng")


def test_an_option_that_is_a_secret_is_not_repeated(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    receiver = Receiver.model_validate({"kind": "raising", "options": {"token": "${env:MY_TOKEN}"}})
    with pytest.raises(DeliveryError, match=r"not this time, .*\$\{env:MY_TOKEN\}"):
        deliver(receiver, {})


def test_the_catalog_may_name_a_type_that_is_not_installed_here() -> None:
    other = QueueType("pigeons")
    assert (str(other), other == "pigeons", other.is_plugin, other.has_events) == ("pigeons", True, True, True)
    assert not QueueType("poll").is_plugin
    assert list(QueueType) == [QueueType(one.value) for one in QueueType]
    with pytest.raises(ValueError, match="Not A Name"):
        QueueType("Not A Name")


def test_the_sample_passes_the_suites(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": sample_path(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-q", "-rs", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(SAMPLE)]
    command = [sys.executable, "-m", "pytest", *options, str(SAMPLE / "tests")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout
    skipped = {line.rpartition(": ")[2] for line in done.stdout.splitlines() if line.startswith("SKIPPED")}
    queue = {"it delivers a message once while it is started", "a thread waits for it"}
    assert skipped == {*queue, *(f"the store {does}" for does in ("knows no more", "takes no outputs", "reads no parts"))}


def test_a_home_uses_the_sample_for_files_events_and_alerts(tmp_path: Path) -> None:
    files, events, metadata = (tmp_path / name for name in ("files", "events", "metadata"))
    for folder in (files, events, metadata, tmp_path / "home"):
        folder.mkdir()
    (files / "a.txt").write_text("a")
    (tmp_path / "home" / "volstream.toml").write_text(
        f'[receivers.log]\nkind = "file"\noptions = {{ path = "{tmp_path}/alerts" }}\n'
    )
    environment = {**os.environ, "PYTHONPATH": sample_path(metadata), "VOLSTREAM_HOME": str(tmp_path / "home")}

    def run(*words: str, code: int = 0, path: str = environment["PYTHONPATH"]) -> str:
        command = [sys.executable, "-m", "volstream", *words]
        environ = {**environment, "PYTHONPATH": path}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done
        return done.stdout + done.stderr

    queue = ("--queue-type", "spool", "--queue-name", str(events))
    assert "(queue: spool)" in run("create-volume", "v", f"spool://{files}", *queue)
    assert "1 file " in run("refresh", "v")
    run("alert", "test", "log")
    assert json.loads((tmp_path / "alerts").read_text())["event"] == "test"
    assert "not an allowed value" in run("create-volume", "w", str(files), "--queue-type", "pigeons", code=2)
    without = str(SAMPLE.parents[1])
    assert '"spool"' in run("list", "volumes", "--format", "json", path=without)
    assert "scheme 'spool' are not supported" in run("refresh", "v", code=3, path=without)
