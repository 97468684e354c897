"""Alibaba Cloud: OSS and MNS."""

from __future__ import annotations

import re

from volstream.files.providers.base import DOTS, Provider

PROVIDER = Provider(
    folder=__name__,
    scheme="oss",
    queue_type="mns",
    package="oss2",
    buckets=re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]"),
    role="acs:ram::1234567890123456:role/volstream",
    unaskable=re.compile(DOTS),
    unwired=("OSS does not report its event rules.", "Look at the bucket's event notifications in the console, or use --canary."),
)
