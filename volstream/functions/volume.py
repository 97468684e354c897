"""Functions of the files of a volume, which SQL statements call: ``file_content``, ``get_presigned_url``. Run on executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from volstream.base.model.units import format_size
from volstream.errors import InvalidValueError
from volstream.files.storage.base import PROBE, HasDetails, ObjectStore
from volstream.functions.file import check_url_seconds

#: Maximum size of a content in a row. Spark asks for a hundred rows at a time, and has them in memory at once.
_MAX_CONTENT = 16 << 20


@dataclass(frozen=True)
class FileContent:
    """``file_content(VOLUME v, path)``: the content of a file; NULL if there is none."""

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
    """``get_presigned_url(VOLUME v, path, seconds)``: a URL with which anyone can read the object for ``seconds``."""

    store: HasDetails

    def __call__(self, path: str | None, seconds: int | None = 3600) -> str | None:
        """Signs a URL, without a request. Raises ValueError as :meth:`volstream.functions.file.File.presigned_url`."""
        if path is None or seconds is None:
            return None
        check_url_seconds(seconds)
        return self.store.presigned_url(path, int(seconds))


def volume_function(name: str, store: ObjectStore) -> Any:
    """Returns a function of :data:`volstream.sql.statement.VOLUME_FUNCTIONS` as Spark registers it.

    Raises:
        StorageError: the store gives no keys.
    """
    from pyspark.sql.connect.functions import udf
    from pyspark.sql.types import BinaryType, StringType

    if name == "file_content":
        # Not by Arrow, which would ask for 10,000 contents at once.
        return udf(FileContent(store), BinaryType(), useArrow=False)
    assert isinstance(store, HasDetails), "all stores of volumes have details"
    store.presigned_url(PROBE, 1)  # requests the keys now: an error while Spark pickles the store would look like a bug
    return udf(PresignedUrl(store), StringType(), useArrow=False)
