"""A receiver of alerts that appends them to a file, a line of JSON each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from volstream.errors import InvalidValueError


def append(payload: Mapping[str, Any], options: Mapping[str, str], seconds: float) -> None:
    """Appends an alert to the file of the option ``path``. When it returns, the alert is delivered; if it raises, it is not."""
    del seconds  # a line is written at once
    if "path" not in options:
        raise InvalidValueError("A receiver of the kind file needs the option path.", "options = { path = '...' }")
    with open(options["path"], "a", encoding="utf-8") as file:
        file.write(json.dumps(payload) + "\n")
