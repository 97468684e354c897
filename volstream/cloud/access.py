"""Access to a provider, as values: the contents of a connection, and the keys that the settings hold for it.

What does not belong here: requests to a provider (see the file named after it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

#: Types of connection that refer to a provider, by URI scheme.
PROVIDERS = ("oss", "s3")


@dataclass(frozen=True)
class Keys:
    """Keys that sign requests. The secrets are not in the repr.

    Attributes:
        token: of temporary keys; None: the keys are long-lived, and must not leave this process.
        expires: expiry of temporary keys, if known.
    """

    id: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    expires: datetime | None = None


@dataclass(frozen=True)
class Access:
    """The location of a provider's services, and the identity that is used with them.

    Attributes:
        provider: one of :data:`PROVIDERS`.
        region: None: taken from the provider's own settings (environment, profile, instance).
        endpoint: URL of the store; None: the provider's own. An S3-compatible server is expected to serve STS, and queues
            given by name, at the same URL.
        role_arn: the role to assume; None: the credentials are used directly.
        external_id: sent when the role is assumed.
        credentials: ``env`` (environment, then instance), ``profile:NAME``, or ``static``.
        keys: the keys of ``static``.
    """

    provider: str
    region: str | None = None
    endpoint: str | None = None
    role_arn: str | None = None
    external_id: str | None = None
    credentials: str = "env"
    keys: Keys | None = None
