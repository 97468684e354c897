"""Checks the health of this home's daemon on this host, according to its settings: ``python -m
volstream.server.probe healthz``."""

from __future__ import annotations

import ssl
import sys
from urllib.error import HTTPError
from urllib.request import urlopen

from volstream.base import config
from volstream.base.privacy import address_of

#: Less than the timeout of containers' probes.
_SECONDS = 4.0


def main(path: str) -> None:
    """Returns if the daemon is healthy. Otherwise exits with the reason."""
    settings = config.load()
    address = address_of(settings.model_copy(update={"console_hosts": ()}), settings.http_port)
    context = ssl.create_default_context()
    # The connection never leaves this host.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urlopen(f"{address}/{path}", timeout=_SECONDS, context=context):
            return
    except HTTPError as error:
        sys.exit(error.read().decode())
    except TimeoutError:
        sys.exit(f"{address} did not answer within {_SECONDS:g} s. If /healthz answers, the catalog does not.")
    except OSError as error:
        sys.exit(f"{address}: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
