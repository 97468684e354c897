"""Files of a volume that are pictures, for pages to show: recognised by content, of a limited size, and nothing else."""

from __future__ import annotations

from volstream.base.model.files import printable
from volstream.base.model.names import Name
from volstream.base.model.pictures import media_type
from volstream.base.model.units import format_size
from volstream.errors import InvalidValueError, NotFoundError
from volstream.files.volumes.access import store_of
from volstream.jobs.home import Home
from volstream.server.console.facts.volumes import snapshot_of

#: A larger file is not shown.
_MAX_BYTES = 16 << 20


def picture(home: Home, volume: str, path: str) -> tuple[str, bytes]:
    """Returns the media type and the content of a file.

    Raises:
        NotFoundError: it is not in the volume's directory, or gone from the store.
        InvalidValueError: it is no picture, or too large.
    """
    definition = home.catalog.volumes.get(Name.parse(volume))
    directory = snapshot_of(home, definition)
    rows = [] if directory is None else directory.find([path]).to_pylist()
    if not rows:
        raise NotFoundError(f"There is no file {printable(path)} in volume {definition.name}.")
    if rows[0]["size"] > _MAX_BYTES:
        raise InvalidValueError(f"The file is larger than {format_size(_MAX_BYTES)}.")
    try:
        with store_of(definition, home.catalog, home.settings).open(path) as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"The file {printable(path)} no longer exists in the store.") from None
    kind = media_type(content)
    if kind is None or len(content) > _MAX_BYTES:
        raise InvalidValueError(f"The file {printable(path)} is not a picture that can be shown.")
    return kind, content
