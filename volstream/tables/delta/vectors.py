"""Deletion vectors: the deleted rows of data files. This module writes them per the Delta protocol; deltalake
reads them.

No library except Delta's own writes them. A vector is a 64-bit Roaring bitmap of positions in a data file.
One file stores all vectors of a commit.
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from pyroaring import BitMap64

from volstream.tables.delta.places import filesystem_of, make_durable

#: The protocol's magic number for bitmaps of this layout.
_MAGIC = 1681511377

#: Layout version of a file of vectors.
_LAYOUT = b"\x01"

#: The alphabets of ZeroMQ's base 85, required by the protocol, and of Python's, in the same order.
_ZEROMQ = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_PYTHON = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_ALPHABET, _PYTHON_ALPHABET = bytes.maketrans(_PYTHON, _ZEROMQ), bytes.maketrans(_ZEROMQ, _PYTHON)


def write_vectors(location: str, deleted: Mapping[str, np.ndarray]) -> Mapping[str, Mapping[str, Any]]:
    """Writes the positions of deleted rows, by data file, into one file of a table.

    The file's content is durable on return. The commit makes its name durable.

    Returns:
        The descriptor for the ``add`` action, by data file.
    """
    filesystem, root = filesystem_of(location)
    name = uuid.uuid4()
    content = bytearray(_LAYOUT)
    descriptors: dict[str, Mapping[str, Any]] = {}
    for path, positions in deleted.items():
        # After the magic number, the protocol expects the portable serialization of a 64-bit bitmap.
        vector = struct.pack("<i", _MAGIC) + BitMap64(positions).serialize()
        descriptors[path] = {
            "storageType": "u",
            "pathOrInlineDv": base64.b85encode(name.bytes).translate(_ALPHABET).decode(),
            "offset": len(content),
            "sizeInBytes": len(vector),
            "cardinality": len(positions),
        }
        content += struct.pack(">i", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
    path = f"{root}/deletion_vector_{name}.bin"
    with filesystem.open_output_stream(path) as file:
        file.write(bytes(content))
    make_durable(filesystem, path, folders=False)
    return descriptors


def file_of(descriptor: Mapping[str, Any] | None) -> str | None:
    """Returns the path of a deletion vector's file, relative to the table, or None if the vector is not in a
    file of the table."""
    if descriptor is None or descriptor["storageType"] != "u":
        return None
    prefix, encoded = descriptor["pathOrInlineDv"][:-20], descriptor["pathOrInlineDv"][-20:]
    name = uuid.UUID(bytes=_decoded(encoded))
    return f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"


def _decoded(text: str) -> bytes:
    return base64.b85decode(text.encode().translate(_PYTHON_ALPHABET))


def positions(location: str, descriptor: Mapping[str, Any]) -> np.ndarray:
    """Returns the positions of the rows that a vector deletes. Raises FileNotFoundError if a vacuum deleted
    its file, ValueError if it is damaged."""
    if descriptor["storageType"] == "i":
        vector = _decoded(descriptor["pathOrInlineDv"])[: descriptor["sizeInBytes"]]
    else:
        name = file_of(descriptor)
        if name is None:
            raise FileNotFoundError(descriptor["pathOrInlineDv"])
        filesystem, root = filesystem_of(location)
        with filesystem.open_input_file(f"{root}/{name}") as file:
            file.seek(descriptor.get("offset", 1) + 4)
            vector, checksum = file.read(descriptor["sizeInBytes"]), file.read(4)
        if struct.pack(">I", zlib.crc32(vector)) != checksum:
            raise ValueError(f"{name} is damaged")
    return np.array(BitMap64.deserialize(vector[4:]).to_array(), np.int64)


def deleted_rows(table: DeltaTable, files: Collection[str]) -> Mapping[str, np.ndarray]:
    """Returns the positions of deleted rows by data file, for files with deleted rows.

    Args:
        files: paths as in the log.
    """
    deleted: dict[str, np.ndarray] = {}
    by_name = {path.rpartition("/")[2]: path for path in files}
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        for at, uri in enumerate(batch["filepath"].to_pylist()):
            path = by_name.get(uri.rpartition("/")[2])
            if path is not None:
                is_live = batch["selection_vector"][at].values.to_numpy(zero_copy_only=False)
                deleted[path] = np.flatnonzero(~is_live)
    return deleted
