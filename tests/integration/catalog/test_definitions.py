"""Definitions survive the round trip through the catalog."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime

import pytest

from tests import objects
from volstream.base.definitions import Connection, ConnectionType, JobState, QueueType, StreamMode, Write
from volstream.base.model.hints import Rejection
from volstream.base.model.names import Name
from volstream.base.model.work import Refresh
from volstream.catalog import Catalog
from volstream.catalog.definitions import note_begun, note_ended
from volstream.cli.connection import create_connection_command
from volstream.errors import AlreadyExistsError, CatalogError, InvalidValueError, NotFoundError
from volstream.files.volumes.definitions import create_connection


def test_a_taken_name_names_options_that_there_are(catalog: Catalog) -> None:
    name = Name.parse("store")
    create_connection(catalog, name, objects.connection_options("s3"))
    with pytest.raises(AlreadyExistsError) as caught:
        create_connection(catalog, name, objects.connection_options("s3"))
    options = {option for param in create_connection_command.params for option in param.opts}
    assert {*re.findall(r"--[\w-]+", caught.value.remedy)} <= options


def test_text_that_the_catalog_cannot_hold_is_refused_in_a_sentence(catalog: Catalog) -> None:
    with pytest.raises(InvalidValueError, match="a lone surrogate"):
        create_connection(catalog, Name.parse("half"), objects.connection_options("s3", comment="\ud800"))
    if catalog.database.is_embedded:
        return
    with pytest.raises(InvalidValueError, match="NUL"):
        create_connection(catalog, Name.parse("nul"), objects.connection_options("s3", comment="\0"))


def test_stored_objects_are_read_back_equal(catalog: Catalog) -> None:
    connection = Connection(
        id=objects.new_id(),
        name=Name("media", "s3 main"),
        type=ConnectionType("s3"),
        region="eu-west-1",
        role_arn="arn:aws:iam::1:role/r",
        external_id="external",
        comment="it's ours",
        created_on=objects.NOW,
    )
    source = objects.volume(
        "media.`my volume`",
        connection_id=connection.id,
        queue_type=QueueType.POLL,
        patterns=("*.jpg", "a/**"),
        ignores=(),
        recursive=False,
        comment="naïve ☃",
    )
    on_it = objects.stream(source, mode=StreamMode.APPEND_ONLY, offset=None, table_id=None, comment="c")
    consumer = objects.job(
        on_it,
        every=0.5,
        where="size > 3",
        write=Write.APPEND,
        timeout=1.5,
        isolate=True,
        max_files=3,
        max_bytes=1 << 40,
        arguments={"k": "v"},
        environment="/x/requirements.txt",
        state=JobState.PAUSED,
        state_reason="why",
        owns_stream=True,
        clean=True,
        into=Name("results", "labels"),
        last_outcome="fine",
    )
    with catalog.database.transaction() as transaction:
        catalog.connections.add(transaction, connection)
        catalog.volumes.add(transaction, source)
        catalog.streams.add(transaction, on_it)
        catalog.jobs.add(transaction, consumer)
    assert catalog.connections.get(connection.name) == connection
    # JSON has lists only: compare as such.
    found = catalog.volumes.get(source.name)
    assert (tuple(found.patterns), tuple(found.ignores)) == (source.patterns, source.ignores)
    assert dataclasses.replace(found, patterns=source.patterns, ignores=source.ignores) == source
    assert catalog.streams.by_id(on_it.id) == on_it
    assert catalog.jobs.find(consumer.name) == consumer


def test_times_are_read_back_timezone_aware_whatever_their_original_zone(catalog: Catalog) -> None:
    source = objects.volume(created_on=datetime.fromisoformat("2024-05-06T09:08:09.000001+02:00"))
    with catalog.database.transaction() as transaction:
        catalog.volumes.add(transaction, source)
    found = catalog.volumes.get(source.name).created_on
    assert found == source.created_on
    assert found.tzinfo is UTC


def test_names_are_case_insensitive(catalog: Catalog) -> None:
    source = objects.volume("Media.Images")
    with catalog.database.transaction() as transaction:
        catalog.volumes.add(transaction, source)
    assert catalog.volumes.get(Name.parse("MEDIA.IMAGES")).id == source.id
    assert catalog.volumes.find(Name.parse("images")) is None
    other_case = objects.volume("media.`IMAGES`")
    with pytest.raises(AlreadyExistsError, match=r"media\.images"), catalog.database.transaction() as transaction:
        catalog.volumes.add(transaction, other_case)


def test_an_error_about_a_missing_object_gives_its_name_and_kind(catalog: Catalog) -> None:
    with pytest.raises(NotFoundError, match=r"There is no stream gone\. See: volstream list streams"):
        catalog.streams.get(Name.parse("gone"))
    assert catalog.streams.by_id("nobody") is None


def test_a_list_is_ordered_and_can_be_filtered(catalog: Catalog) -> None:
    volumes = [objects.volume(name) for name in ("b", "a", "s.z")]
    streams = [objects.stream(volumes[0], "one"), objects.stream(volumes[1], "two")]
    with catalog.database.transaction() as transaction:
        for source in volumes:
            catalog.volumes.add(transaction, source)
        for on_it in streams:
            catalog.streams.add(transaction, on_it)
    assert [str(volume.name) for volume in catalog.volumes.list()] == ["a", "b", "s.z"]
    assert [stream.id for stream in catalog.streams.list(source_id=volumes[0].id)] == [streams[0].id]
    assert catalog.streams.first(source_id=volumes[2].id) is None


def test_an_update_changes_only_the_given_fields(catalog: Catalog) -> None:
    _source, _on_it, consumer = objects.store_job(catalog)
    catalog.jobs.change(consumer, comment="theirs")
    # Ours is older: it knows nothing of that comment, and must not undo it.
    changed = catalog.jobs.change(consumer, retries=9)
    assert (changed.retries, changed.comment) == (9, None)
    stored = objects.file_job(catalog.jobs.get(consumer.name))
    assert (stored.retries, stored.comment) == (9, "theirs")


def test_deleting_a_volume_deletes_its_rows_but_not_its_streams(catalog: Catalog) -> None:
    source, on_it, _ = objects.store_job(catalog)
    catalog.refreshes.record(Refresh(source.id, 1, "events", 1, 0, 0, 5, objects.NOW))
    catalog.refreshes.ask_check(source.id, ["a"])
    catalog.refreshes.reject(source.id, [Rejection("x", "because")])
    with catalog.database.transaction() as transaction:
        catalog.volumes.remove(transaction, source)
    assert catalog.volumes.find(source.name) is None
    assert catalog.streams.by_id(on_it.id) == on_it
    assert catalog.refreshes.asked_checks(source.id, 10) == {}
    assert catalog.refreshes.rejected() == []


def test_deleting_a_job_deletes_its_plans_batches_failures_and_intents(catalog: Catalog) -> None:
    _, on_it, consumer = objects.store_job(catalog)
    made, (first,) = objects.store_plan(catalog, consumer)
    from volstream.base.model.work import Target

    intent = catalog.consumptions.begin(first, owner="me", target=Target("/t", "table", 0))
    catalog.failures.add_pending([objects.failure(consumer, "a", intent.attempt)])
    with catalog.database.transaction() as transaction:
        catalog.consumptions.forget(transaction, consumer, force=True)
        catalog.jobs.remove(transaction, consumer)
        catalog.streams.remove(transaction, on_it)
    assert catalog.reports.plan(made.id) is None
    assert catalog.reports.batch(first.id) is None
    assert catalog.consumptions.open_intent(on_it.id) is None


def test_a_stream_serves_one_job(catalog: Catalog) -> None:
    _, on_it, _ = objects.store_job(catalog)
    with pytest.raises(CatalogError), catalog.database.transaction() as transaction:
        catalog.jobs.add(transaction, objects.job(on_it, "second"))


def test_the_start_and_end_of_a_run_are_recorded(catalog: Catalog) -> None:
    _, _, consumer = objects.store_job(catalog)
    note_begun(catalog.database, consumer)
    running = catalog.jobs.get(consumer.name)
    assert running.last_started is not None
    assert running.last_ended is None
    note_ended(catalog.database, consumer, "2 files done")
    ended = catalog.jobs.get(consumer.name)
    assert ended.last_started == running.last_started
    assert ended.last_ended is not None
    assert ended.last_outcome == "2 files done"
