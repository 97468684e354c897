"""Connections and volumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.memory import MemoryStore
from tests.objects import connection_options
from volstream.base import config
from volstream.base.definitions import QueueType, VolumeSpec
from volstream.base.model.names import Name
from volstream.catalog import Catalog
from volstream.errors import AlreadyExistsError, InvalidValueError, NotFoundError, ObjectInUseError, StorageError
from volstream.files.volumes.definitions import alter_volume, create_connection, create_volume, drop_connection, drop_volume

V = Name.parse("v")
SETTINGS = config.load("/nowhere")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "my files"
    made.mkdir()
    return made


def test_a_volume_on_a_directory_watches_it(catalog: Catalog, folder: Path) -> None:
    made = create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=str(folder)))
    assert (made.location, made.queue_type) == (f"file://{str(folder).replace(' ', '%20')}", QueueType.LOCAL)
    assert catalog.volumes.get(V).id == made.id
    assert made.table_id is None


def test_a_queue_that_cannot_serve_the_location_is_rejected(catalog: Catalog, folder: Path) -> None:
    with pytest.raises(InvalidValueError, match="Choose one of local, kafka, webhook, poll, none"):
        create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=str(folder), queue_type=QueueType("sqs")))
    assert (
        create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=str(folder), queue_type=QueueType.POLL)).queue_type
        is QueueType.POLL
    )


def test_a_topic_needs_a_name_and_brokers_and_keeps_no_secret(catalog: Catalog, folder: Path) -> None:
    topic = VolumeSpec(name=V, location=str(folder), queue_type=QueueType.KAFKA, queue_name="events")
    brokers = {"bootstrap.servers": "a:9092, b:9092"}
    for spec, said in (
        (replace(topic, queue_name=None), "needs a queue name"),
        (topic, "needs the property bootstrap.servers"),
        (replace(topic, queue_properties={"bootstrap.servers": "a"}), "'a' is not the address of a broker"),
        (replace(topic, queue_properties={**brokers, "no.such": "x"}), "no.such"),
        (replace(topic, queue_properties={**brokers, "enable.auto.commit": "true"}), "is set by volstream"),
        (replace(topic, queue_properties={**brokers, "sasl.password": "hunter2"}), "which the catalog does not store"),
        (replace(topic, queue_type=QueueType.POLL, queue_properties=brokers), "has no properties"),
    ):
        with pytest.raises(InvalidValueError, match=said) as refused:
            create_volume(catalog, SETTINGS, spec, check=False)
        assert "hunter2" not in str(refused.value)
    said_so = {**brokers, "sasl.password": "${env:PASSWORD}"}
    create_volume(catalog, SETTINGS, replace(topic, queue_properties=said_so), check=False)
    assert catalog.volumes.get(V).queue_properties == said_so
    alter_volume(catalog, SETTINGS, V, queue_type=QueueType.POLL)
    assert catalog.volumes.get(V).queue_properties is None


def test_a_missing_directory_is_a_user_error(catalog: Catalog, folder: Path) -> None:
    with pytest.raises(NotFoundError, match=r"my files/none does not exist"):
        create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=f"{folder}/none"))
    (folder / "file").write_text("")
    with pytest.raises(NotFoundError, match="is not a directory"):
        create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=f"{folder}/file"))
    with pytest.raises(StorageError):
        create_volume(catalog, SETTINGS, VolumeSpec(name=V, location="memory://nobody-made-this"))
    assert catalog.volumes.list() == []


def test_a_scheme_without_a_store_is_rejected(catalog: Catalog) -> None:
    with pytest.raises(InvalidValueError, match="gopher"):
        create_volume(catalog, SETTINGS, VolumeSpec(name=V, location="gopher://hole"))


@pytest.mark.parametrize("glob", ["", "/absolute/*"])
def test_invalid_globs_are_rejected(catalog: Catalog, folder: Path, glob: str) -> None:
    with pytest.raises(InvalidValueError, match="not a glob"):
        create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=str(folder), patterns=(glob,)))
    with pytest.raises(InvalidValueError, match="not a glob"):
        create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=str(folder), ignores=(glob,)))


def test_a_name_can_be_used_once_unless_asked_otherwise(catalog: Catalog, folder: Path) -> None:
    first = create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=str(folder)))
    with pytest.raises(AlreadyExistsError):
        create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=str(folder)))
    with pytest.raises(InvalidValueError, match="mutually exclusive"):
        create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=str(folder)), or_replace=True, if_not_exists=True)
    assert create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=f"{folder}/none"), if_not_exists=True).id == first.id
    assert create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=str(folder)), or_replace=True).id != first.id
    assert len(catalog.volumes.list()) == 1


def test_a_failed_replacement_leaves_the_volume_as_it_was(catalog: Catalog, folder: Path) -> None:
    first = create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=str(folder)))
    with pytest.raises(NotFoundError):
        create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=f"{folder}/none"), or_replace=True)
    assert catalog.volumes.get(V).id == first.id


def test_a_dropped_volume_is_gone_and_dropping_it_again_is_an_error(catalog: Catalog, folder: Path) -> None:
    create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=str(folder)))
    assert drop_volume(catalog, V)
    assert not drop_volume(catalog, V, if_exists=True)
    with pytest.raises(NotFoundError):
        drop_volume(catalog, V)


def test_a_connection_has_its_own_external_id_and_no_secret(catalog: Catalog) -> None:
    one = create_connection(catalog, Name.parse("one"), connection_options("s3", region="eu-west-1", credentials="profile:work"))
    two = create_connection(catalog, Name.parse("two"), connection_options("oss"))
    assert one.external_id != two.external_id
    assert create_connection(catalog, Name.parse("one"), connection_options("oss"), if_not_exists=True) == one
    with pytest.raises(AlreadyExistsError):
        create_connection(catalog, Name.parse("one"), connection_options("s3"))
    with pytest.raises(InvalidValueError, match="not an allowed value"):
        create_connection(catalog, Name.parse("x"), connection_options("ftp"))
    with pytest.raises(InvalidValueError, match="not a credential source"):
        create_connection(catalog, Name.parse("x"), connection_options("s3", credentials="AKIA-SECRET"))


def test_a_connection_in_use_is_not_dropped(catalog: Catalog) -> None:
    name = Name.parse("c")
    create_connection(catalog, name, connection_options("local"))
    store = MemoryStore("memory://connected")
    store.create()
    create_volume(catalog, SETTINGS, VolumeSpec(name=V, location="memory://connected", connection=name))
    with pytest.raises(ObjectInUseError, match="Volume v"):
        drop_connection(catalog, name)
    drop_volume(catalog, V)
    assert drop_connection(catalog, name)
    assert not drop_connection(catalog, name, if_exists=True)
    store.drop()


def test_a_volume_on_a_missing_connection_is_rejected(catalog: Catalog, folder: Path) -> None:
    with pytest.raises(NotFoundError, match="no connection nobody"):
        create_volume(catalog, SETTINGS, VolumeSpec(name=V, location=str(folder), connection=Name.parse("nobody")))


def test_a_queue_url_with_a_password_is_rejected_and_not_echoed(catalog: Catalog) -> None:
    spec = VolumeSpec(name=V, location="s3://bucket/", queue_name="https://u:hidden@sqs.eu-west-1.amazonaws.com/1/q")
    with pytest.raises(InvalidValueError, match="user name or password") as refused:
        create_volume(catalog, SETTINGS, spec, check=False)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("endpoint", ["http://minio:99999", "http://minio:0", "http://minio:abc"])
def test_an_endpoint_with_an_impossible_port_is_rejected(catalog: Catalog, endpoint: str) -> None:
    with pytest.raises(InvalidValueError, match="not the URL of a server"):
        create_connection(catalog, Name.parse("c"), connection_options("s3", endpoint=endpoint))
