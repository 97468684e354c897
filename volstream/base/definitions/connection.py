"""Connections: how a store is reached, and with which credentials."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from volstream.base.definitions import forms
from volstream.base.definitions.options import Option
from volstream.base.definitions.words import OpenWords, of_plugins
from volstream.base.model.names import Name
from volstream.base.model.providers import PROVIDERS
from volstream.base.plugins import Group


class ConnectionType(OpenWords):
    """The kind of a store: local, a provider's, or that of a plug-in's provider by its name."""

    LOCAL = "local"
    vars().update({scheme.upper(): scheme for scheme in PROVIDERS})


#: Also of a plug-in's provider that is installed here.
_TYPE = forms.words(ConnectionType, others=of_plugins(Group.PROVIDERS))


def _endpoint(value: Any) -> str:
    """Reads an endpoint: HTTPS is assumed for a bare host, as in the providers' documentation."""
    text = str(forms.TEXT.read(value))
    return text if "://" in text else f"https://{text}"


_ENDPOINT = forms.form("a URL", "str", _endpoint, metavar="URL")


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """What a user says of a connection. Credentials by reference only: no secret is stored."""

    type: Annotated[ConnectionType, Option("The kind of store.", alterable=False, form=_TYPE)]
    region: Annotated[str | None, Option("The provider's region, such as eu-west-1.")] = None
    endpoint: Annotated[str | None, Option("URL of a compatible store; HTTPS is assumed for a bare host.", form=_ENDPOINT)] = None
    role_arn: Annotated[str | None, Option("The role to assume: an ARN, a service account, a client id.", metavar="ROLE")] = None
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
