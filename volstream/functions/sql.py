"""Python functions in SQL statements: on values, and on the files of a volume."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from volstream.base.definitions import Function
from volstream.base.model.names import Name
from volstream.base.model.units import format_size
from volstream.errors import InvalidValueError
from volstream.files.storage.base import PROBE, HasDetails, ObjectStore
from volstream.functions.file import check_url_seconds
from volstream.functions.pickled import code_of, function_attributes, resolved
from volstream.functions.rows import LEAVES
from volstream.functions.schema import from_ddl, to_ddl
from volstream.functions.source import FunctionSource
from volstream.functions.types.values import strict_json

# Python functions on values, for SQL statements: they are shipped to executors and stored.
#
# They are found, shipped and imported like per-file functions (``functions``).

#: Column name used when parsing a type.
_COLUMN = "value"


@dataclass(eq=False)
class ScalarCall:
    """A function on values that Spark calls. Each query pickles its source, and its first call imports it."""

    source: FunctionSource
    of_items: bool = False
    _function: Callable[..., Any] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "of_items": self.of_items, "_function": None}

    def __call__(self, *arguments: Any) -> Any:
        """Calls the function."""
        if self._function is None:
            self._function = self.source.load()
        with self.source.importable():
            if not self.of_items:
                value = self._function(*arguments)
                # Spark reads it only with later values.
                return value if type(value) in LEAVES else copy.deepcopy(value)
            item = self._function(json.loads(arguments[0]))
        return None if item is None else strict_json(_check_item(item))


def _check_item(item: Any) -> Any:
    if not isinstance(item, dict):
        raise TypeError(f"A function of items returns a dict or None, not {type(item).__name__}.")
    return item


def call_of(function: Function) -> ScalarCall:
    """Returns the function with its current code. Raises FunctionLoadError if the code is missing."""
    return ScalarCall(code_of(function), function.of_items)


def new_function(
    name: Name,
    function: str | Callable[..., Any],
    returns: str,
    comment: str | None,
    *,
    of_items: bool = False,
    directory: Path | None = None,
) -> Function:
    """Returns a function for the catalog, after importing it once to check that it exists.

    Args:
        function: ``file.py:func``, ``pkg.mod:func`` or a callable.
        returns: a SQL type.
        of_items: see :class:`~volstream.base.definitions.Function`.
        directory: where to find the file or module. The working directory by default.

    Raises:
        FunctionLoadError: the function cannot be imported.
        InvalidValueError: the type is unknown.
    """
    definition = function_attributes(function)
    place, source = resolved(definition, directory or Path.cwd())
    source.load()
    return Function(
        id=str(uuid.uuid4()),
        name=name,
        function=place,
        search_path=source.root,
        pickled=definition["pickled"],
        returns=sql_type(returns),
        of_items=of_items,
        comment=comment,
        created_on=datetime.now(UTC),
    )


def sql_type(text: str) -> str:
    """Returns a SQL type in Spark's spelling. Raises InvalidValueError."""
    try:
        schema = from_ddl(f"{_COLUMN} {text}\n")  # the newline ends a comment
    except InvalidValueError:
        schema = None
    if schema is None or schema.names != [_COLUMN]:
        raise InvalidValueError(f"RETURNS {text!r} is not a SQL type.", "Write for example STRING, DOUBLE or ARRAY<STRING>.")
    return to_ddl(schema).removeprefix(f"{_COLUMN} ")


# Functions on the files of a volume, for SQL statements: ``file_content``, ``get_presigned_url``. They run on
# executors.

#: Maximum size of a content in a row. Spark requests a hundred rows at a time, and has them in memory at
#: once.
_MAX_CONTENT = 16 << 20


@dataclass(frozen=True)
class FileContent:
    """``file_content(VOLUME v, path)``: the content of a file, or NULL if the file does not exist."""

    store: ObjectStore

    def __call__(self, path: str | None) -> bytes | None:
        """Reads the file. Raises InvalidValueError if it is too large for a row."""
        if path is None:
            return None
        try:
            with self.store.open(path) as content:
                read = content.read(_MAX_CONTENT + 1)
        except FileNotFoundError:
            return None
        if len(read) > _MAX_CONTENT:
            raise InvalidValueError(
                f"file_content: {path} is larger than {format_size(_MAX_CONTENT)}.",
                "Leave it out by a condition on size, or process it in a job.",
            )
        return read


@dataclass(frozen=True)
class PresignedUrl:
    """``get_presigned_url(VOLUME v, path, seconds)``: a URL with which anyone can read the object for
    ``seconds``."""

    store: HasDetails

    def __call__(self, path: str | None, seconds: int | None = 3600) -> str | None:
        """Signs a URL, without a request. Raises ValueError as
        :meth:`volstream.functions.file.File.presigned_url`."""
        if path is None or seconds is None:
            return None
        check_url_seconds(seconds)
        return self.store.presigned_url(path, int(seconds))


def volume_function(name: str, store: ObjectStore) -> Any:
    """Returns a function of :data:`volstream.sql.statement.VOLUME_FUNCTIONS`, for registration in Spark.

    Raises:
        StorageError: the store provides no keys.
    """
    from pyspark.sql.connect.functions import udf
    from pyspark.sql.types import BinaryType, StringType

    if name == "file_content":
        # Not with Arrow, which would request 10,000 contents at once.
        return udf(FileContent(store), BinaryType(), useArrow=False)
    assert isinstance(store, HasDetails), "all stores of volumes have details"
    # Requests the keys now: an error while Spark pickles the store would look like a bug.
    store.presigned_url(PROBE, 1)
    return udf(PresignedUrl(store), StringType(), useArrow=False)
