"""Google: Cloud Storage and Pub/Sub."""

from __future__ import annotations

import re

from volstream.files.providers.base import Provider

PROVIDER = Provider(
    folder=__name__,
    scheme="gs",
    queue_type="pubsub",
    package="google.cloud.storage",
    buckets=re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    role="volstream@my-project.iam.gserviceaccount.com",
    sources=("env", "profile"),
    writes_reports=False,
)
