"""The providers of buckets, and those of plug-ins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins import pretend_installed
from volstream.base import config, plugins
from volstream.base.definitions import ConnectionOptions, ConnectionType, QueueType, VolumeSpec
from volstream.base.definitions.objects import PROVIDERS
from volstream.base.definitions.options import read
from volstream.base.model.names import Name
from volstream.catalog import Catalog
from volstream.errors import DependencyError, InvalidValueError
from volstream.files.providers.access import Access
from volstream.files.providers.base import own, provider_by, provider_of
from volstream.files.queues import open_queue
from volstream.files.queues.base import QueueSpec
from volstream.files.queues.in_process import SilentQueue
from volstream.files.storage import normalise_location, open_store
from volstream.files.volumes.access import access_of
from volstream.files.volumes.definitions import create_connection, create_volume

_PLUGIN = """
import re
from volstream.plugins import Provider

def provider():
    return Provider(__name__, "acme", "carrier", "acme_sdk", re.compile("[a-z]+"), "role/x")
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with a provider, of whose parts some need a package that is missing."""
    package = tmp_path / "acme_plugin"
    package.mkdir()
    (package / "__init__.py").write_text(_PLUGIN)
    (package / "policies.py").write_text("def is_role(name, endpoint):\n    return name.startswith('role/')\n")
    (package / "queue.py").write_text(
        "from volstream.files.queues.in_process import SilentQueue\n\ndef open_queue(spec):\n    return SilentQueue(spec)\n"
    )
    (package / "store.py").write_text("import acme_sdk\n")
    pretend_installed(tmp_path, "acme", {"volstream.providers": {"acme": "acme_plugin:provider"}})
    monkeypatch.syspath_prepend(tmp_path)
    plugins._point.cache_clear()
    yield
    plugins._point.cache_clear()


def test_the_table_has_the_words_of_the_providers() -> None:
    assert [(one.scheme, one.queue_type) for one in own()] == [(scheme, words.queue_type) for scheme, words in PROVIDERS.items()]
    assert {*PROVIDERS, "local"} == {*ConnectionType}
    assert {words.queue_type for words in PROVIDERS.values()} < {*QueueType}


@pytest.mark.parametrize("location", ["/data", "file:///data", "memory://x", "hdfs://host/x"])
def test_what_is_in_no_bucket_has_no_provider(location: str) -> None:
    assert provider_of(location) is None


@pytest.mark.parametrize("package", [words.folder for words in PROVIDERS.values()])
def test_a_provider_is_known_without_its_packages(package: str) -> None:
    code = (
        f"import sys, {package} as folder\n"
        "folder.PROVIDER.hints_of({})\n"
        "folder.PROVIDER.is_role('x', None)\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert {"boto3", "botocore", "oss2", "mns", "azure.core", "google.auth", "sqlalchemy", "pyspark"}.isdisjoint(
        loaded.stdout.split()
    )


def test_a_daemon_and_plugins_need_no_package_of_an_extra() -> None:
    code = (
        "import sys\n"
        "for name in ('boto3', 'botocore', 'oss2', 'mns', 'aiohttp', 'yarl', 'azure', 'google', 'confluent_kafka'):\n"
        "    sys.modules[name] = None\n"
        "import volstream.plugins, volstream.server.daemon.service, volstream.server.daemon.tasks, volstream.server.daemon.volumes"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.usefixtures("acme")
def test_a_package_can_bring_a_whole_provider(catalog: Catalog) -> None:
    settings = config.load("/nowhere")
    assert provider_by("acme") is not None
    assert normalise_location("acme://bucket/in/") == "acme://bucket/in"
    with pytest.raises(InvalidValueError, match="does not name a bucket"):
        normalise_location("acme://123")
    options = ConnectionOptions(**read(ConnectionOptions, {"type": "acme", "role_arn": "role/y"}))
    connection = create_connection(catalog, Name.parse("c"), options)
    with pytest.raises(InvalidValueError, match="Write for example role/x"):
        create_connection(
            catalog, Name.parse("d"), ConnectionOptions(**read(ConnectionOptions, {"type": "acme", "role_arn": "y"}))
        )
    spec = VolumeSpec(name=Name.parse("v"), location="acme://bucket/in", connection=connection.name, queue_name="messages")
    volume = create_volume(catalog, settings, spec, check=False)
    assert (volume.queue_type, volume.queue_type.is_plugin) == ("carrier", True)
    access = access_of(volume, catalog, settings)
    assert access == Access("acme", role_arn="role/y", external_id=connection.external_id)
    queue = open_queue(volume.queue_type, QueueSpec(volume.location, name="messages", access=access))
    assert isinstance(queue, SilentQueue)
    with pytest.raises(DependencyError, match="acme:// needs the package acme_sdk"):
        open_store(volume.location, access)
