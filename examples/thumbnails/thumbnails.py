"""The job's function: a picture becomes a thumbnail, a file of another volume, and a row that names it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import PurePosixPath

from PIL import Image

from volstream import File, OutputFile


@dataclass
class Picture:
    """A row of the table. The column ``thumbnail`` has the type FILE."""

    width: int
    height: int
    thumbnail: OutputFile


def shrink(file: File, edge: str = "128") -> Picture:
    """Returns the row of a picture, with a thumbnail of at most ``edge`` pixels each way."""
    with Image.open(file.open()) as image:
        small = image.convert("RGB")
        small.thumbnail((int(edge), int(edge)))
        jpeg = io.BytesIO()
        small.save(jpeg, "JPEG", quality=80)
        path = PurePosixPath(file.relative_path).with_suffix(".jpg")
        return Picture(image.width, image.height, OutputFile(str(path), data=jpeg.getvalue()))
