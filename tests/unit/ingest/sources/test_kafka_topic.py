"""Definitions of topics: properties and secrets."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from volstream.errors import DependencyError, InvalidValueError
from volstream.ingest.sources.kafka import TopicSource

SOURCE = TopicSource(("a:9092", "b.example:9093"), "t", {}, "json")


def test_a_definition_may_have_any_property_of_the_client_and_secrets_by_reference() -> None:
    replace(
        SOURCE,
        properties={
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "me",
            "sasl.password": "${env:PASSWORD}",
            "ssl.key.pem": "${file:/run/secrets/key.pem}",
            "ssl.ca.location": "/not/on/this/host.pem",
        },
    ).check()


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "ssl.keystore.password",
    ],
)
def test_a_secret_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(InvalidValueError, match="which the catalog does not store") as refused:
        replace(SOURCE, properties={name: "hunter2"}).check()
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("brokers", "said"),
    [
        ((), "No brokers are given"),
        (("a",), "'a' is not the address"),
        (("a:1,b:2",), "'a:1,b:2' is not the address"),
        (("a:x",), "'a:x' is not the address"),
    ],
)
def test_brokers_have_a_host_and_a_port(brokers: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidValueError, match=said):
        replace(SOURCE, brokers=brokers).check()


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "x" * 250, "^a.*"])
def test_a_topic_is_one_topic(topic: str) -> None:
    with pytest.raises(InvalidValueError, match="is not the name of a topic"):
        replace(SOURCE, topic=topic).check()


def test_references_are_looked_up_when_the_topic_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    source = replace(SOURCE, properties={"sasl.username": "${env:KAFKA_USER}", "sasl.password": f"${{file:{secret}}}"})
    with pytest.raises(InvalidValueError, match="The environment variable KAFKA_USER is not set"):
        source.reader()
    monkeypatch.setenv("KAFKA_USER", "me")
    with pytest.raises(InvalidValueError, match=r"The file .*secret cannot be read: No such file"):
        source.reader()
    secret.write_text("hunter2\n")
    source.reader().close()


def test_properties_that_do_not_fit_together_are_refused_where_they_are_used() -> None:
    source = replace(SOURCE, properties={"security.protocol": "SSL", "ssl.ca.location": "/not/there.pem"})
    source.check()
    with pytest.raises(InvalidValueError, match=r"rejects its properties: .*ssl\.ca\.location"):
        source.reader()


def test_a_client_that_is_not_installed_is_named_with_the_extra_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "volstream.files.kafka.client", raising=False)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    for use in (SOURCE.check, SOURCE.reader):
        with pytest.raises(DependencyError, match="'confluent_kafka', which is not installed") as failed:
            use()
        assert failed.value.remedy == "Install it: pip install 'volstream[kafka]'."
