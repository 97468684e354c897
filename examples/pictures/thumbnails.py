"""The pipeline's function: a picture becomes its size, a thumbnail, and a hash that similar pictures share most bits of."""

from __future__ import annotations

import io
from dataclasses import dataclass

import imagehash
import numpy as np
from PIL import Image

from volstream import File


@dataclass
class Picture:
    """A row of the table. The thumbnail is a JPEG file; the hash has 64 bits."""

    width: int
    height: int
    thumbnail: bytes
    hash: int


def describe(file: File, edge: int = 128) -> Picture:
    """Returns the row of a picture, with a thumbnail of at most ``edge`` pixels each way."""
    with Image.open(file.open()) as image:
        small = image.convert("RGB")
        small.thumbnail((edge, edge))
        jpeg = io.BytesIO()
        small.save(jpeg, "JPEG", quality=80)
        bits = np.packbits(imagehash.phash(image).hash).tobytes()
        return Picture(image.width, image.height, jpeg.getvalue(), int.from_bytes(bits, signed=True))
