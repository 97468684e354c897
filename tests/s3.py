"""A bucket for warehouses, and a check that an engine can reach it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import boto3
import pytest

from tests.clouds import moto
from volstream import config
from volstream.errors import JavaError
from volstream.jvm import connectors, jars

#: The secret of the keys below; it must not appear in any output or log.
SECRET = "long-lived-secret"


@contextmanager
def warehouse_in_s3() -> Iterator[Mapping[str, str]]:
    """The settings of a home with a warehouse in a new bucket; skips where the engine's connector was not fetched, but not in
    CI."""
    try:
        jars.installed(config.cache_directory(), connectors.S3, connectors.SET_UP)
    except JavaError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    with bucket("warehouse") as options:
        yield {"WAREHOUSE": "s3://warehouse/here", "WAREHOUSE_OPTIONS": json.dumps(options)}


@contextmanager
def bucket(name: str) -> Iterator[dict[str, str]]:
    """A new bucket; yields the options with which a warehouse there is reached."""
    with moto() as url:
        keys = {"aws_access_key_id": "AKIATEST", "aws_secret_access_key": SECRET}
        boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys).create_bucket(Bucket=name)
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "AKIATEST",
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
