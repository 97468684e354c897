"""References to secrets in definitions and settings, ``${env:NAME}`` and ``${file:PATH}``: looked up where the secret is needed,
when it does, and stored as they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from volstream.base import config
from volstream.errors import InvalidValueError

_REFERENCE = re.compile(r"\$\{(env|file):([^{}]+)\}")

#: Names of properties that are secrets, of clients such as librdkafka.
_SECRET = re.compile(
    r"passw(or)?d|pwd|passphrase|secret|key\.pem$|^sasl\.oauthbearer\.config$|(api|access|private|account)[._-]?key|"
    r"(^|[._-])token$",
    re.IGNORECASE,
)


def refers(text: str) -> bool:
    """True if there is a reference in the text."""
    return _REFERENCE.search(text) is not None


def resolve(text: str) -> str:
    """Returns text with its references replaced, by files without the line break at their end.

    Raises:
        InvalidValueError: a reference leads nowhere.
    """
    return _REFERENCE.sub(lambda match: _resolved(*match.groups()), text)


def hidden(message: str, said: Mapping[str, str], resolved: Mapping[str, str]) -> str:
    """Returns a message with the references that were written in place of the values that they led to.

    Args:
        said, resolved: texts by name, before and after :func:`resolve`.
    """
    for name, text in resolved.items():
        if text and refers(said[name]):
            message = message.replace(text, said[name])
    return message


def check_secrets(properties: Mapping[str, str]) -> None:
    """Raises InvalidValueError, without repeating it, for a secret that is not given by reference."""
    for name, value in properties.items():
        if _SECRET.search(name) and not refers(value):
            raise InvalidValueError(
                f"The property {name} is a secret, which the catalog does not store.",
                "Write ${env:NAME} for a variable of the environment, or ${file:PATH} for a file with the value.",
            )


def _resolved(kind: str, name: str) -> str:
    if kind == "env":
        value = config.environment(name)
        if value is None:
            raise InvalidValueError(
                f"The environment variable {name} is not set.", "Set it for this process, which may be the daemon."
            )
        return value
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidValueError(f"The file {name} cannot be read: {reason}.") from None
