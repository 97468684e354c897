"""Connections to providers and volumes in buckets: what is checked on creation, and where the keys are kept."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.clouds import Cloud, unused_name
from tests.servers import KEY_ID, SECRET, each
from volstream.api.objects.sql import rows as rows_of
from volstream.api.session import Session
from volstream.base import config
from volstream.base.config import Settings
from volstream.base.definitions import Connection, QueueType
from volstream.base.model.names import Name
from volstream.cli.objects import describe_command, list_command
from volstream.errors import InvalidValueError, QueueError, StorageDeniedError, StorageError
from volstream.files.volumes.access import access_of
from volstream.ops.inspection import details

C = Name.parse("c")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "volstream.toml").write_text(f'[credentials.c]\naccess_key_id = "{KEY_ID}"\naccess_key_secret = "{SECRET}"\n')
    return tmp_path


@pytest.fixture
def session(home: Path) -> Iterator[Session]:
    with Session(config.load(home)) as opened:
        yield opened


def connect(session: Session, cloud: Cloud, **options: Any) -> Connection:
    one = cloud.access
    said: dict[str, Any] = {"region": one.region, "endpoint": one.endpoint, "credentials": "static", **options}
    return session.connections.create("c", one.provider, **said)


def test_a_volume_in_a_bucket_is_reached_through_its_connection(session: Session, s3: Cloud) -> None:
    s3.make_bucket("reached")
    connection = connect(session, s3)
    volume = session.volumes.create("v", "s3a://reached/in/", connection="c")
    assert (volume.location, volume.queue_type) == ("s3://reached/in", QueueType.POLL)
    access = access_of(volume, session.home.catalog, session.home.settings)
    assert access == replace(s3.access, external_id=connection.external_id)


def test_a_volume_in_a_bucket_needs_no_connection_and_reports_what_is_wrong(session: Session, s3: Cloud, oss: Cloud) -> None:
    oss.make_bucket("reached")
    connect(session, s3)
    with pytest.raises(StorageError, match="NoSuchBucket"):
        session.volumes.create("v", "s3://nobody-made-this", connection="c")
    with pytest.raises(InvalidValueError, match="c has the type s3, but oss://reached requires the type oss"):
        session.volumes.create("v", "oss://reached", connection="c")
    with pytest.raises(InvalidValueError, match="requires the type local"):
        session.volumes.create("v", str(session.home.settings.home), connection="c")
    session.connections.create("d", "oss", region="cn-hangzhou", endpoint=oss.access.endpoint, credentials="static")
    with pytest.raises(InvalidValueError, match=r"below \[credentials.d\] in volstream.toml"):
        session.volumes.create("v", "oss://reached", connection="d")
    assert session.volumes.list() == []


@pytest.mark.parametrize("cloud", each("oss", "seaweedfs"), indirect=True)  # the others take any
def test_wrong_keys_are_rejected_when_the_volume_is_created(home: Path, cloud: Cloud) -> None:
    keys, bucket = cloud.access.keys, unused_name()
    location = f"{cloud.access.provider}://{bucket}"
    assert keys is not None
    (home / "volstream.toml").write_text(f'[credentials.c]\naccess_key_id = "{keys.id}"\naccess_key_secret = "mistyped"\n')
    cloud.make_bucket(bucket)
    with Session(config.load(home)) as session:
        connect(session, cloud)
        with pytest.raises(StorageDeniedError, match=rf"{location}/\.volstream-probe: "):
            session.volumes.create("v", location, connection="c")


def test_a_queue_must_belong_to_the_provider_and_have_a_name(session: Session, s3: Cloud) -> None:
    connect(session, s3)
    with pytest.raises(InvalidValueError, match="Choose one of sqs, kafka, webhook, poll, none"):
        session.volumes.create("v", "s3://bucket", connection="c", queue_type=QueueType("mns"))
    with pytest.raises(InvalidValueError, match="queue_name"):
        session.volumes.create("v", "s3://bucket", connection="c", queue_type=QueueType("sqs"))


def test_an_endpoint_may_be_a_bare_host_name(session: Session) -> None:
    made = session.connections.create("c", "oss", endpoint="oss-cn-shanghai.aliyuncs.com")
    assert made.endpoint == "https://oss-cn-shanghai.aliyuncs.com"


def test_a_connection_to_an_unreachable_endpoint_is_rejected(session: Session) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("s3", {"endpoint": "s3.example/path"}),
        ("s3", {"endpoint": "https://user:password@s3.example"}),
        ("s3", {"endpoint": "https://s3.example/path"}),
        ("s3", {"region": "Europe (Ireland)"}),
        ("s3", {"role_arn": "acs:ram::1234567890:role/r"}),
        ("s3", {"role_arn": "arn:aws:iam::1:role/r"}),
        ("oss", {"role_arn": "arn:aws:iam::123456789012:role/r"}),
        ("local", {"role_arn": "arn:aws:iam::123456789012:role/r"}),
        ("gs", {"role_arn": "arn:aws:iam::123456789012:role/r"}),
        ("gs", {"credentials": "static"}),
        ("az", {"role_arn": "volstream@my-project.iam.gserviceaccount.com"}),
        ("az", {"credentials": "profile:work"}),
    ]
    for type_, options in wrong:
        with pytest.raises(InvalidValueError) as error:
            session.connections.create("c", type_, **options)
        assert "password" not in str(error.value)


def test_a_connection_accepts_only_what_its_provider_supports(session: Session) -> None:
    session.connections.create("a", "s3", region="eu-west-1", role_arn="arn:aws:iam::123456789012:role/path/r")
    session.connections.create("b", "s3", endpoint="http://minio:9000", role_arn="arn:minio:iam:::role/r")
    session.connections.create("d", "oss", region="cn-hangzhou", role_arn="acs:ram::1234567890:role/r")
    session.connections.create("e", "gs", credentials="profile:/k.json", role_arn="r@my-project.iam.gserviceaccount.com")
    session.connections.create("f", "az", role_arn="00000000-0000-0000-0000-000000000001")


def test_describe_prints_the_external_id_and_policies_to_paste(session: Session, sqs: Cloud) -> None:
    sqs.make_bucket("described")
    connection = connect(session, sqs, role_arn="arn:aws:iam::123456789012:role/r")
    with pytest.raises(QueueError, match="does not exist"):
        session.volumes.create("v", "s3://described/in", connection="c", queue_type=QueueType("sqs"), queue_name="q")
    session.volumes.create("v", "s3://described/in", connection="c", queue_type=QueueType("sqs"), queue_name="q", check=False)
    text = CliRunner().invoke(describe_command, ["connection", "c", "--home", str(session.home.settings.home)]).output
    said = CliRunner().invoke(
        describe_command, ["connection", "c", "--home", str(session.home.settings.home), "--format", "json"]
    )
    found = json.loads(said.output)
    assert found["external_id"] == connection.external_id
    assert found["volumes"] == ["v"]
    assert found["trust_policy"]["Statement"][0]["Condition"] == {"StringEquals": {"sts:ExternalId": connection.external_id}}
    queue = found["permission_policy"]["Statement"][2]
    assert queue["Resource"] == ["arn:aws:sqs:eu-west-1:123456789012:q"]
    assert json.loads(text.partition("permission_policy:")[2]) == found["permission_policy"]
    assert session.connections.policies("c") == {key: found[key] for key in ("trust_policy", "permission_policy")}
    _, described = rows_of(session, "DESCRIBE CONNECTION c")
    rows = {row["property"]: row["value"] for row in described}
    assert rows["externalId"] == connection.external_id
    assert json.loads(rows["permissionPolicy"]) == found["permission_policy"]


def test_a_local_connection_has_no_policies(session: Session) -> None:
    session.connections.create("c", "local")
    assert session.connections.policies("c") == {}
    assert "trust_policy" not in details.described(session.home, session.connections.get("c"))


def test_no_secret_is_shown_or_stored_anywhere(session: Session, s3: Cloud, capfd: pytest.CaptureFixture[str]) -> None:
    s3.make_bucket("secret")
    assert s3.access.keys is not None
    secret = s3.access.keys.secret
    connection = connect(session, s3)
    volume = session.volumes.create("v", "s3://secret", connection="c")
    access = access_of(volume, session.home.catalog, session.home.settings)
    assert access is not None
    assert access.keys == s3.access.keys
    home = ["--home", str(session.home.settings.home)]
    shown = [
        repr(access),
        str(access),
        repr(session.home.settings),
        session.home.settings.model_dump_json(),
        str(asdict(connection)),
        repr(pickle.dumps(connection)),
        *(repr(path.read_bytes()) for path in session.home.settings.home.glob("catalog.db*")),
    ]
    for command, arguments in ((describe_command, ["connection", "c"]), (list_command, ["connections"])):
        for form in ("text", "json"):
            shown.append(CliRunner().invoke(command, [*arguments, *home, "--format", form]).output)
    shown += [*capfd.readouterr()]
    assert not [text for text in shown if secret in text]


def test_keys_in_invalid_settings_are_not_echoed(tmp_path: Path) -> None:
    for text in ('access_key_secret = "hush"', 'access_key_id = "a"\naccess_key_secret = ["hush"]', 'secret = "hush"'):
        (tmp_path / "volstream.toml").write_text(f"[credentials.c]\n{text}\n")
        with pytest.raises(InvalidValueError, match=r"credentials\.c") as error:
            config.load(tmp_path)
        assert "hush" not in str(error.value)
    assert Settings(home=tmp_path.parent).credentials == {}
