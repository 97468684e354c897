"""Connections: how a store is reached, and with which credentials."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from volstream.base.definitions import forms
from volstream.base.definitions.options import Option
from volstream.base.model.names import Name


class ConnectionType(StrEnum):
    """The kind of a store."""

    LOCAL = "local"
    OSS = "oss"
    S3 = "s3"


def _endpoint(value: Any) -> str:
    """Reads an endpoint: HTTPS is assumed for a bare host, as in the providers' documentation."""
    text = str(forms.TEXT.read(value))
    return text if "://" in text else f"https://{text}"


_ENDPOINT = forms.form("a URL", "str", _endpoint, metavar="URL")


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """What a user says of a connection. Credentials by reference only: no secret is stored."""

    type: Annotated[ConnectionType, Option("The kind of store.", alterable=False, clause=True)]
    region: Annotated[str | None, Option("The provider's region, such as eu-west-1.")] = None
    endpoint: Annotated[
        str | None, Option("URL of a compatible store; HTTPS is assumed for a bare host.", form=_ENDPOINT)
    ] = None
    role_arn: Annotated[str | None, Option("The role to assume.", metavar="ARN")] = None
    credentials: Annotated[str, Option("Where keys come from.", metavar="env|profile:NAME|static")] = "env"
    comment: Annotated[str | None, Option()] = None


@dataclass(frozen=True, kw_only=True)
class Connection(ConnectionOptions):
    """A connection as the catalog has it.

    Attributes:
        external_id: what the trust policy of its role demands.
    """

    id: str
    name: Name
    external_id: str
    created_on: datetime
