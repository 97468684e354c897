"""References in the strings of a file, ``${var:NAME}`` and ``${env:NAME}``, and the refusal of secrets written out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from volstream.base.definitions.forms import as_text
from volstream.errors import InvalidValueError

#: A reference, or with another dollar before it its text.
_REFERENCE = re.compile(r"(\$?)\$\{(var|env):([^{}]*)\}")

#: Names of values that are secrets, in whatever style they are written.
_SECRET_NAME = re.compile(
    r"passw(or)?d|passphrase|secret|token|credential|(api|access|private|account)[_.-]?key|key[_.]pem|pwd|dsn|webhook|cookie|signing"
    r"|(^|[_.-]|pg|db)pass(?=$|[_.-])|(^|[_.-])(pat|auth)(?=$|[_.-])",
    re.IGNORECASE,
)

#: Values that are secrets, whatever they are called: keys of AWS and Alibaba Cloud, private keys, a password in a URL.
_SECRET_VALUE = re.compile(
    r"\b(AKIA|ASIA)[A-Z0-9]{16}\b|\bLTAI[A-Za-z0-9]{12,}|-----BEGIN [A-Z ]*PRIVATE KEY-----|://[^/\s:@]*:[^/\s@]+@"
)


def is_secret(name: str) -> bool:
    """True if a value of this name is a secret."""
    return _SECRET_NAME.search(name) is not None


def check_literal(text: str) -> None:
    """Raises InvalidValueError, without repeating it, for text that contains a secret, or a NUL, which no catalog can hold."""
    if "\0" in text:
        raise InvalidValueError("The value has a NUL character.", "Leave it out.")
    if _SECRET_VALUE.search(text):
        raise InvalidValueError(
            "The value contains a secret.",
            "Keys of stores belong in [credentials] of volstream.toml; refer to others by ${env:NAME}.",
        )


def expand(value: Any, variable: Callable[[str], Any], environment: Callable[[str], str | None]) -> Any:
    """Returns a value, or a list or table of values, with its references replaced.

    A string that is nothing but ``${var:NAME}`` becomes the variable's value with its type. ``$${`` stands for ``${``.

    Args:
        variable: returns a variable's value, or raises InvalidValueError.
        environment: returns the value of a variable of the environment, or None.

    Raises:
        InvalidValueError: a reference leads nowhere or to a secret, or a text contains a secret or a NUL.
    """
    if isinstance(value, Mapping):
        return {key: expand(item, variable, environment) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, variable, environment) for item in value]
    if not isinstance(value, str):
        return value
    check_literal(value)

    def resolved(kind: str, name: str) -> Any:
        if kind == "var":
            return variable(name)
        if is_secret(name):
            raise InvalidValueError(
                f"{name} is a secret, and the catalog stores this value in plain text.",
                "Refer to secrets only in secret properties of topics, or let the function read the environment.",
            )
        text = environment(name)
        if text is None:
            raise InvalidValueError(f"The environment variable {name} is not set.", f"Set it, or replace ${{env:{name}}}.")
        check_literal(text)
        return text

    whole = _REFERENCE.fullmatch(value)
    if whole is not None and not whole[1]:
        return resolved(whole[2], whole[3])
    return _REFERENCE.sub(lambda match: match[0][1:] if match[1] else as_text(resolved(match[2], match[3])), value)


def escaped(text: str) -> str:
    """Returns text that :func:`expand` turns back into ``text``."""
    return re.sub(r"\$+\{(var|env):[^{}]*\}", lambda match: f"${match[0]}", text)
