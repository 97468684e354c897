"""Asks the daemon of this home and host whether it is well, by its settings: ``python -m volstream.server.probe healthz``."""

from __future__ import annotations

import ssl
import sys
from urllib.error import HTTPError
from urllib.request import urlopen

from volstream.base import config
from volstream.base.privacy import address_of

#: Less than containers' probes wait.
_SECONDS = 4.0


def main(path: str) -> None:
    """Returns if the answer is good. Exits with what was wrong."""
    settings = config.load()
    here = address_of(settings.model_copy(update={"console_hosts": ()}), settings.http_port)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it never leaves this host
    try:
        with urlopen(f"{here}/{path}", timeout=_SECONDS, context=context):
            return
    except HTTPError as error:
        sys.exit(error.read().decode())
    except TimeoutError:
        sys.exit(f"{here} did not answer within {_SECONDS:g} s. If /healthz answers, the catalog does not.")
    except OSError as error:
        sys.exit(f"{here}: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
