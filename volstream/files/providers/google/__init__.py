"""Google: Cloud Storage and Pub/Sub."""

from __future__ import annotations

import re
import warnings

from volstream.files.providers.base import Provider

# Google's packages warn a year before they drop a Python version. A user of a command can do nothing about
# it.
warnings.filterwarnings("ignore", "You are using a Python version", FutureWarning)

PROVIDER = Provider(
    folder=__name__,
    scheme="gs",
    queue_type="pubsub",
    package="google.cloud.storage",
    buckets=re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    role="volstream@my-project.iam.gserviceaccount.com",
    sources=("env", "profile"),
    writes_reports=False,
    unaskable=re.compile(r"^\.\.?$"),  # only as whole keys, because slashes are sent encoded
)
