"""``connect`` with the arguments of hosted platforms."""

from __future__ import annotations

from typing import Any

from volstream.api import dbapi
from volstream.base.model.names import DEFAULT_SCHEMA
from volstream.compat.session import ACCOUNT


def connect(*, home: str | None = None, schema: str = DEFAULT_SCHEMA, **settings: Any) -> dbapi.Connection:
    """Opens a home; see :func:`volstream.api.dbapi.connect`. Arguments that name an account elsewhere are
    ignored."""
    own = {key: value for key, value in settings.items() if key not in ACCOUNT}
    return dbapi.connect(home, schema=schema, **own)
