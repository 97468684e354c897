"""The settings an engine gets for a warehouse in an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from volstream.base import config
from volstream.errors import JavaError
from volstream.spark.jvm import install

_ENDPOINT = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
    "AWS_REGION": "eu-west-1",
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "secret",
}


def test_a_warehouse_on_a_file_system_needs_no_connector(tmp_path: Path) -> None:
    settings = config.load(tmp_path, warehouse="/mnt/warehouse", warehouse_options=_ENDPOINT)
    assert install.jars_of(settings.warehouse_path) == ()
    assert install.store_properties(settings) == {}


def test_s3a_gets_the_same_options_as_deltalake(tmp_path: Path) -> None:
    settings = config.load(tmp_path, warehouse="s3://bucket/prefix", warehouse_options=_ENDPOINT)
    assert install.store_properties(settings) == {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9000",
        "spark.hadoop.fs.s3a.endpoint.region": "eu-west-1",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": "id",
        "spark.hadoop.fs.s3a.secret.key": "secret",
        "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }


def test_on_amazon_itself_keys_and_region_are_found_as_by_amazons_own_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    settings = config.load(tmp_path, warehouse="s3://bucket")
    assert set(install.store_properties(settings)) == {"spark.hadoop.fs.s3.impl", "spark.hadoop.fs.s3a.aws.credentials.provider"}


def test_a_missing_connector_is_named_with_the_command_that_fetches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLSTREAM_CACHE", str(tmp_path))
    settings = config.load(tmp_path, warehouse="s3://bucket")
    with pytest.raises(JavaError, match="hadoop-aws") as caught:
        install.warehouse_jars(settings)
    assert "volstream setup --s3" in caught.value.remedy
