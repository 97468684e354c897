"""Amazon: S3 and SQS, and what is compatible with them."""

from __future__ import annotations

import re

from volstream.files.providers.base import Provider

PROVIDER = Provider(
    folder=__name__,
    scheme="s3",
    queue_type="sqs",
    package="boto3",
    buckets=re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,254}"),  # old ones may have names that are no longer allowed
    role="arn:aws:iam::123456789012:role/volstream",
)
