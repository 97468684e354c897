"""How a provider is reached, as values: what a connection says, and the keys that the settings hold for it.

What does not belong here: asking a provider for anything (the file beside this one named for it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

#: Types of connection whose locations are a provider's, by URI scheme.
PROVIDERS = ("oss", "s3")


@dataclass(frozen=True)
class Keys:
    """What signs requests. Its secrets are in no repr.

    Attributes:
        token: of temporary keys; None: the keys are long-lived, and must not leave this process.
        expires: when temporary keys end, where that is known.
    """

    id: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    expires: datetime | None = None


@dataclass(frozen=True)
class Access:
    """Where a provider's services are and by whom they are asked.

    Attributes:
        provider: one of :data:`PROVIDERS`.
        region: None: as the provider's own settings (environment, profile, instance) say.
        endpoint: URL of the store; None: the provider's own. An S3-compatible server has its STS there, too, and
            queues that are given by name.
        role_arn: the role to assume; None: the credentials are used as they are.
        external_id: goes with the role.
        credentials: ``env`` (environment, then instance), ``profile:NAME``, or ``static``.
        keys: of ``static``.
    """

    provider: str
    region: str | None = None
    endpoint: str | None = None
    role_arn: str | None = None
    external_id: str | None = None
    credentials: str = "env"
    keys: Keys | None = None
