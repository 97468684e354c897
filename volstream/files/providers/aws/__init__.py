"""Amazon: S3 and SQS, and what is compatible with them."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from volstream.files.providers.base import Provider

PROVIDER = Provider(
    folder=__name__,
    scheme="s3",
    queue_type="sqs",
    package="boto3",
    # old buckets may have names that are no longer allowed
    buckets=re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,254}"),
    keeps_tables=True,
    role="arn:aws:iam::123456789012:role/volstream",
)


def key_files() -> list[str]:
    """Returns the paths of the files in which Amazon's tools look for profiles. They need not exist."""
    names = ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config")
    return [os.path.expanduser(os.environ.get(name) or default) for name, default in names]


def is_own(endpoint: str | None) -> bool:
    """True if ``endpoint`` is Amazon's. Its other services then have separate addresses."""
    host = urlsplit(endpoint or "").hostname or ""
    return endpoint is None or host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
