"""Settings: where they come from, and those of a virtual cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from volstream.api.session import Session
from volstream.base import config
from volstream.catalog.database import Database
from volstream.errors import InvalidValueError


def home(tmp_path: Path, toml: str) -> Path:
    (tmp_path / "volstream.toml").write_text(toml)
    return tmp_path


CLUSTERS = """
cores = 2
spark_conf = {"spark.a" = "1", "spark.b" = "1"}
[virtual_clusters.GPU]
spark_remote = "sc://gpu:15002"
max_parallel_jobs = 9
[virtual_clusters.big]
spark_master = "local[8]"
driver_memory = "8GiB"
spark_conf = {"spark.b" = "2"}
"""


def test_a_daemon_uses_the_settings_of_its_virtual_cluster_and_otherwise_those_of_the_home(tmp_path: Path) -> None:
    settings = config.load(home(tmp_path, CLUSTERS))
    gpu, big = settings.for_cluster("gpu"), settings.for_cluster("BIG")
    assert (gpu.spark_remote, gpu.max_parallel_jobs, gpu.cores, dict(gpu.spark_conf)) == (
        "sc://gpu:15002",
        9,
        2,
        {"spark.a": "1", "spark.b": "1"},
    )
    assert (big.spark_remote, big.driver_memory, dict(big.spark_conf)) == (
        "",
        8 << 30,
        {"spark.a": "1", "spark.b": "2", "spark.master": "local[8]"},
    )
    assert settings.for_cluster("DEFAULT") is settings


@pytest.mark.parametrize(
    "toml", ["[virtual_clusters.x]\nsparc_master = 'y'", "[virtual_clusters.x]\ncores = -1", "virtual_clusters = 3"]
)
def test_unknown_settings_of_a_virtual_cluster_are_rejected(tmp_path: Path, toml: str) -> None:
    with pytest.raises(InvalidValueError, match="virtual_clusters"):
        config.load(home(tmp_path, toml))


def test_store_options_come_from_the_settings_and_otherwise_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://elsewhere")
    toml = "warehouse = 's3://bucket'\n[warehouse_options]\naws_endpoint_url = 'http://here'\nAWS_SECRET_ACCESS_KEY = 'hidden'"
    settings = config.load(home(tmp_path, toml))
    assert settings.warehouse_storage == {
        "AWS_REGION": "eu-north-1",
        "AWS_ENDPOINT_URL": "http://here",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "AWS_FORCE_CREDENTIAL_LOAD": "true",  # the key's id may be in a profile
    }
    assert "hidden" not in repr(settings)
    # As they go to the home's engine.
    passed = json.loads(settings.model_dump_json(exclude={"home", "credentials"}, exclude_unset=True))
    assert config.load(tmp_path / "other", **passed).warehouse_storage == settings.warehouse_storage


@pytest.mark.parametrize(
    ("warehouse", "path"),
    [("", "/h/warehouse"), ("w/", "/h/w"), ("/w", "/w"), ("s3://b/p/", "s3://b/p")],
    ids=["none", "relative", "absolute", "remote"],
)
def test_a_relative_warehouse_is_in_the_home(warehouse: str, path: str) -> None:
    assert config.load("/h", warehouse=warehouse).warehouse_path == path


def test_a_warehouse_on_a_file_system_gets_no_store_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert config.load(tmp_path).warehouse_storage == {}


@pytest.mark.parametrize("toml", ["warehouse = 'oss://bucket'", "[warehouse_options]\nendpoint = 'http://here'"])
def test_unknown_store_options_are_rejected(tmp_path: Path, toml: str) -> None:
    with pytest.raises(InvalidValueError, match="AWS_ENDPOINT_URL"):
        config.load(home(tmp_path, toml))


def test_secrets_are_not_in_the_representation_of_settings(tmp_path: Path) -> None:
    given = {
        "catalog_url": "postgresql://u:hidden@h/d",
        "spark_remote": "sc://h/;token=hidden",
        "spark_conf": {"spark.hadoop.fs.s3a.secret.key": "hidden"},
        "warehouse_options": {"AWS_SECRET_ACCESS_KEY": "hidden"},
        "virtual_clusters": {"x": {"spark_remote": "sc://h/;token=hidden", "spark_conf": {"a": "hidden"}}},
        "credentials": {"c": {"access_key_id": "a", "access_key_secret": "hidden"}},
    }
    assert "hidden" not in f"{config.load(tmp_path, **given)!r}"


@pytest.mark.parametrize(
    "url", ["postgresql://u:hidden@h/d", "postgresql://h/d?user=u&password=hidden", "postgresql://h/d?passfile=hidden"]
)
def test_a_catalog_is_described_without_its_password(url: str) -> None:
    assert Database(url).describe().startswith("postgresql")
    assert "hidden" not in Database(url).describe()


def test_keys_in_the_url_of_a_warehouse_are_rejected_and_not_echoed(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="warehouse_options") as refused:
        config.load(tmp_path, warehouse="s3://key:hidden@bucket/prefix")
    assert "hidden" not in str(refused.value)


def test_tables_of_the_file_the_environment_and_the_caller_are_merged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "volstream.toml").write_text("cores = 1\n[spark_conf]\na = 'file'\nb = 'file'\nc = 'file'\n")
    monkeypatch.setenv("volstream_spark_conf", '{"b": "environment", "c": "environment"}')
    monkeypatch.setenv("VOLSTREAM_CORES", "2")
    settings = config.load(tmp_path, spark_conf={"c": "caller"})
    assert settings.spark_conf == {"a": "file", "b": "environment", "c": "caller"}
    assert (settings.cores, config.load(tmp_path, cores=3).cores) == (2, 3)


def test_a_home_whose_path_is_not_text_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="not valid UTF-8"):
        config.load(tmp_path / "\udcff")


@pytest.mark.parametrize("name", ["a,b", "a\\b", "a%20b", "a#b", "a?", "a*", "a[b]", "a{b}", "a\nb"])
def test_a_home_whose_path_others_would_read_as_another_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidValueError, match="cannot be a home"):
        config.load(tmp_path / name)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a name and without a home directory, as in containers."""

    def unknown(number: int) -> None:
        raise KeyError(number)

    for name in ("HOME", "VOLSTREAM_HOME", "VOLSTREAM_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)


@pytest.mark.usefixtures("nobody")
def test_a_user_without_a_home_directory_is_told_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"VOLSTREAM_HOME"):
        config.load()
    with pytest.raises(InvalidValueError, match=r"VOLSTREAM_CACHE"):
        config.cache_directory()
    with Session.builder.config("home", tmp_path).create() as session:
        assert session.home.settings.home == tmp_path


def test_a_home_in_the_directory_of_a_user_that_there_is_not_is_rejected() -> None:
    with pytest.raises(InvalidValueError, match=r"Give a whole path"):
        config.load("~nobody-of-that-name/home")


def test_a_variable_that_is_not_json_is_named_without_its_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VOLSTREAM_SPARK_CONF", "hidden")
    with pytest.raises(InvalidValueError, match="VOLSTREAM_SPARK_CONF") as refused:
        config.load(tmp_path)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("token", ["", " ", "short", "x" * 15])
def test_a_token_that_can_be_guessed_is_refused_and_not_shown(tmp_path: Path, token: str) -> None:
    with pytest.raises(InvalidValueError, match=r"ingest_token: .*at least 16 characters") as error:
        config.load(tmp_path, ingest_token=token)
    assert token.strip() == "" or token not in str(error.value)
    assert config.load(tmp_path, ingest_token="x" * 16).ingest_token is not None
