"""Google: Cloud Storage and Pub/Sub."""

from __future__ import annotations

import re
import warnings

from volstream.files.providers.base import Provider

# Of Google's packages, a year before they end support of a Python; nothing that a user of a command can act on.
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
    unaskable=re.compile(r"^\.\.?$"),  # as whole keys: a slash is sent encoded
)
