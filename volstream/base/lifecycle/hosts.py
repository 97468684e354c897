"""The addresses and names at which the console is reached, and its URL. Imports no web framework: commands use it."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from volstream.base.config import Settings
from volstream.base.lifecycle.privacy import secret_in
from volstream.base.model.locations import LOOPBACK
from volstream.errors import InvalidValueError

#: File of the home with the token that pages and programs need.
TOKEN = "console.token"

#: Addresses that stand for all of a host.
_ANY = ("0.0.0.0", "::")


def token_of(settings: Settings) -> str:
    """Returns the console's token, which is made if it is missing. Raises InvalidValueError."""
    return secret_in(settings.home / TOKEN)


def url_of(settings: Settings, port: int) -> str:
    """Returns the URL of the console of a daemon that listens on a port, with the token."""
    return f"{address_of(settings, port)}/?token={quote(token_of(settings))}"


def address_of(settings: Settings, port: int) -> str:
    """Returns what the URLs of the console's pages begin with, without a slash at its end."""
    scheme = "http" if settings.console_certificate is None else "https"
    address = settings.console_address
    host = next(iter(settings.console_hosts), LOOPBACK[0]) if address in _ANY else address
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"


def certificate_of(settings: Settings, server: str, host: str) -> tuple[Path, Path] | None:
    """Returns the files of the certificate and the key of a server, ``console`` or ``ingest``; None: it has none.

    Raises:
        InvalidValueError: there is none, and other hosts can reach it; or there is half of one.
    """
    certificate, key = getattr(settings, f"{server}_certificate"), getattr(settings, f"{server}_key")
    if certificate is not None and key is not None:
        return certificate, key
    if certificate is not None or key is not None:
        raise InvalidValueError(f"{server}_certificate and {server}_key belong together.", "Set both.")
    if host not in LOOPBACK:
        raise InvalidValueError(
            f"{server}_address {host} can be reached from the network, but there is no certificate.",
            f"Set {server}_certificate and {server}_key, or listen on 127.0.0.1.",
        )
    return None


def known_hosts(settings: Settings) -> frozenset[str]:
    """Returns the host names that requests may name."""
    address = () if settings.console_address in _ANY else (settings.console_address,)
    return frozenset(name.lower() for name in (*LOOPBACK, *address, *settings.console_hosts))


#: ``name[:port]`` or ``[address][:port]``.
_HOST = re.compile(r"(?:\[([0-9a-z:.]+)\]|([0-9a-z._-]+))(?::[0-9]{1,5})?")


def host_of(header: str) -> str:
    """Returns the host of a ``Host`` header without the port; empty if it is anything but a host and a port."""
    match = _HOST.fullmatch(header.lower())
    return "" if match is None else match[1] or match[2]
