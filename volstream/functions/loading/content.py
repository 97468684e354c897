"""The content of a file to be loaded: its parts, decompressed, and their text, block by block.

A file's compression is recognized by its first bytes. Names may be wrong, and a proxy or an HTTP client may
have decompressed it.
"""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import posixpath
import re
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import pyarrow as pa

from volstream.base.model.units import format_size
from volstream.functions.file import File
from volstream.functions.loading.options import LoadOptions, is_marker
from volstream.functions.rejection import FileRejectedError

#: Maximum size of a row of a csv file, of a record of a json file, and of a block that is read at once.
MAX_RECORD_BYTES = 16 << 20

_BLOCK_BYTES = 1 << 20

#: A file is rejected if it expands to more bytes than the first, and to more than its size times the second.
_MAX_EXPANDED, _MAX_FACTOR = 256 << 20, 1000

#: Number of bytes that identify a file's format.
_HEAD_BYTES = 512

#: Maximum size of a zip file's end: a record of 22 bytes, and a comment.
_ZIP_END = 22 + 0xFFFF

#: Maximum number of compressions: a compressed file may be compressed again on its way into a bucket.
_MAX_LAYERS = 3

#: Maximum size of an archive entry's content in memory.
_IN_MEMORY = 16 << 20

#: Python keeps up to a kilobyte for each entry of an archive, and more for attributes. An archive with more
#: is rejected.
_MAX_ENTRIES, _MAX_ATTRIBUTES = 100_000, 1_000_000

#: How much of an archive is read and parsed at once: the directory of a zip file, the headers of a tar file's
#: entry.
_MAX_DIRECTORY, _MAX_HEADERS = 32 << 20, 1 << 20

#: The system id of zip entries with Unix file attributes.
_UNIX = 3

#: The first bytes of each entry in a zip file's directory.
_ZIP_ENTRY = b"PK\x01\x02"


class Expansion:
    """How far a file expands, including all entries of an archive.

    Args:
        size: of the file. The limit depends on it.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._before = self._last = 0

    def begin_entry(self) -> None:
        """Starts to count the expanded size of the archive's next entry."""
        self._before += self._last
        self._last = 0

    def check(self, expanded: int) -> None:
        """Raises FileRejectedError if the file expands too far.

        Args:
            expanded: expanded bytes of the file, or of its entry, so far. A repeated read does not add to it.
        """
        self._last = max(self._last, expanded)
        if self._before + self._last > max_expanded_size(self._size):
            raise FileRejectedError(
                f"The file has {format_size(self._size)} and expands to {format_size(self._before + self._last)} or more. "
                f"The limit is {format_size(_MAX_EXPANDED)}, or {_MAX_FACTOR} times its size."
            )


@dataclass(frozen=True)
class Part:
    """A file, or an entry of an archive.

    Attributes:
        path: its name tells the format.
        expansion: how far it expands.
        open: opens the decompressed content as a binary file, from the start. Invalidates the file that it
            returned before. Reading raises FileRejectedError if the content is broken or expands too far.
        resources: closed once the part has been read.
        entry: the entry's path in the archive, or None for a file.
    """

    path: str
    expansion: Expansion
    open: Callable[[], Any]
    resources: ExitStack
    entry: str | None = None

    def seekable(self) -> Any:
        """Returns the content as a seekable file."""
        content = self.open()
        return content if content.seekable() else _spooled(content, self.resources)


def parts(file: File, options: LoadOptions, *, unpack: bool) -> Iterator[Part]:
    """Yields the parts of a file: the file itself, or the entries of a zip or tar file. Each must be read
    before the next.

    Args:
        unpack: treat a zip file as an archive, not as a document.

    Raises:
        FileRejectedError: it is broken.
    """
    with ExitStack() as resources:
        part = _decompressed(Part(file.relative_path, Expansion(file.size), partial(_rewound, file.open()), resources))
        begin = part.open().read(_HEAD_BYTES)
        is_zip = unpack and begin.startswith((b"PK\x03\x04", b"PK\x05\x06"))  # the latter has no entries
        if not is_zip and not _begins_tar(begin):
            yield part
            return
        kind, entries = ("zip", _zip_entries) if is_zip else ("tar", _tar_entries)
        expansion = Expansion(file.size)
        skipped, read = "", False
        for written, opened in entries(part):
            name = "/".join(folder for folder in _escaped(written).split("/") if folder not in ("", ".", ".."))
            if is_marker(name) or (options.entries and not any(fnmatchcase(name, pattern) for pattern in options.entries)):
                skipped = skipped or name
                continue
            read = True
            expansion.begin_entry()
            with ExitStack() as own:
                with _reading(kind):
                    content = opened()
                entry = _spooled(_Expanding(content, kind, expansion), own)
                if entry.read(1):
                    yield _decompressed(Part(name, expansion, partial(_rewound, entry), own, name))
        if skipped and not read:
            raise FileRejectedError(
                f"The file has no entry to load: all are like {skipped!r}, "
                + ("which the pattern of entries leaves out." if options.entries else "whose name begins with _ or a dot.")
            )


def _decompressed(part: Part) -> Part:
    """Returns a part with its content decompressed."""
    for _ in range(_MAX_LAYERS):
        begin = part.open().read(_HEAD_BYTES)
        known = next((entry for entry in _COMPRESSIONS if entry[0].match(begin)), None)
        if known is None:
            break
        _, compression, reader = known
        part = replace(part, open=partial(_decompressing, part, compression, reader))
    return part


def _rewound(content: Any) -> Any:
    content.seek(0)
    return content


def _decompressing(part: Part, compression: str, reader: Callable[[Any], Any]) -> Any:
    with _reading(compression):
        return _Expanding(reader(part.open()), compression, part.expansion)


def _zip_entries(part: Part) -> Iterator[tuple[str, Callable[[], Any]]]:
    content = _Metered(part.seekable(), _MAX_DIRECTORY)
    with _reading("zip"), zipfile.ZipFile(content) as archive:
        content.left = None
        _check_no_extra(archive)
        if "[Content_Types].xml" in archive.namelist():
            raise FileRejectedError(
                "The file is a document of an office program, such as Excel. Install a package that reads it; name its format."
            )
        entries = (entry for entry in archive.infolist() if not entry.is_dir())
        for entry in {_extracted(entry.filename): entry for entry in entries}.values():
            if entry.flag_bits & 1:
                raise FileRejectedError(f"The entry {entry.filename!r} of the file is encrypted. Store it without a password.")
            if not _is_link(entry):
                yield entry.filename, partial(archive.open, entry)


def _is_link(entry: zipfile.ZipInfo) -> bool:
    """Returns whether it is a symbolic link, whose content is the target's path."""
    return entry.create_system == _UNIX and stat.S_ISLNK(entry.external_attr >> 16)


def _check_no_extra(archive: zipfile.ZipFile) -> None:
    """Raises FileRejectedError if a zip file has data before or after the entries in its directory, which is
    at its end."""
    content: Any = archive.fp
    before = min((entry.header_offset for entry in archive.infolist()), default=archive.start_dir)
    size = content.seek(0, io.SEEK_END)
    content.seek(max(archive.start_dir, size - _ZIP_END))
    end = content.read()
    at = end.rindex(b"PK\x05\x06") + 22
    after = end[at + int.from_bytes(end[at - 2 : at], "little") :].strip(b"\0")
    if before or after:
        raise FileRejectedError(
            f"The zip file has {before or len(after):,} bytes {'before' if before else 'after'} the entries that its directory "
            "lists, like zip files that were joined: these would not be loaded. Store the zip files one by one."
        )


def _tar_entries(part: Part) -> Iterator[tuple[str, Callable[[], Any]]]:
    content = _Metered(part.seekable(), _MAX_HEADERS)
    with _reading("tar"), tarfile.open(fileobj=content, mode="r:") as archive:
        found: dict[str, tuple[str, tarfile.TarInfo]] = {}
        attributes = 0
        for number, entry in enumerate(archive, start=1):
            attributes += len(entry.pax_headers) + len(entry.sparse or ())
            if number > _MAX_ENTRIES or attributes > _MAX_ATTRIBUTES:
                raise _too_many_entries()
            content.left = _MAX_HEADERS
            if entry.isdir():
                continue
            name = _extracted(entry.name)
            # A hard link refers to the current entry of that name, which may be a link to a file elsewhere.
            content_of = found.get(_extracted(entry.linkname), (name, entry))[1] if entry.islnk() else entry
            found[name] = entry.name, content_of
        # Python takes a broken entry for the end, which consists of zeros.
        content.left = None
        content.seek(archive.offset)
        rest = b""
        while (block := content.read(_BLOCK_BYTES)) and not rest.strip(b"\0"):
            rest = block
        if len(rest) < tarfile.BLOCKSIZE or rest.strip(b"\0"):
            raise tarfile.ReadError("it is cut off, or has a broken entry")
        for written, entry in found.values():
            if entry.islnk():
                raise tarfile.ReadError(f"{written!r} is a hard link to {entry.linkname!r}, which is not before it")
            if entry.isfile():
                yield written, partial(archive.extractfile, entry)


def _escaped(name: str) -> str:
    """Returns a name with bytes that are not UTF-8, which tar files may have, as ``\\xfc``."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _extracted(name: str) -> str:
    """Returns the path to which an entry would be extracted. A later entry with the same path replaces it."""
    return posixpath.normpath(name).lstrip("/")


def _begins_tar(begin: bytes) -> bool:
    """Returns whether it is the header of a tar file, with its checksum: text may have the same magic
    bytes."""
    try:
        return begin[257:262] == b"ustar" and bool(tarfile.TarInfo.frombuf(begin, "utf-8", "surrogateescape"))
    except tarfile.HeaderError:
        return False


class _Metered(io.BufferedIOBase):
    """An archive that is rejected if Python's modules, which do not look ahead, read too much of it to find
    its entries.

    Attributes:
        left: number of bytes that may be read, or None for all.
    """

    def __init__(self, content: Any, left: int | None) -> None:
        self.left = left
        self._content = content

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._content.seek(offset, whence))

    def tell(self) -> int:
        return int(self._content.tell())

    def read(self, size: int | None = -1) -> bytes:
        if self.left is None:
            return bytes(self._content.read(size))
        block: bytes = self._content.read(self.left + 1 if size is None or size < 0 else min(size, self.left + 1))
        self.left -= len(block)
        if self.left < 0 or block.count(_ZIP_ENTRY) > _MAX_ENTRIES:
            raise _too_many_entries()
        return block


def _too_many_entries() -> FileRejectedError:
    return FileRejectedError(
        f"The archive has more than {_MAX_ENTRIES:,} entries, or too long names and attributes of them. Store it in parts."
    )


def _spooled(content: Any, resources: ExitStack) -> Any:
    """Returns content as a seekable file, in memory or in a temporary file.

    Raises:
        FileRejectedError: it takes more than half of the free disk space.
    """
    folder = tempfile.gettempdir()
    half = shutil.disk_usage(folder).free // 2
    # `resources` closes it.
    file = tempfile.SpooledTemporaryFile(_IN_MEMORY, prefix="volstream-part-")  # noqa: SIM115
    resources.push(file)
    while block := content.read(_BLOCK_BYTES):
        file.write(block)
        if file.tell() > max(half, _IN_MEMORY):
            raise FileRejectedError(
                f"The file, or an entry of it, expands to more than half of the {format_size(2 * half)} free in the worker's "
                f"{folder} (TMPDIR). Free space there, or store it in smaller parts."
            )
    file.seek(0)
    return file


class _Snappy(io.RawIOBase):
    """Decompresses snappy's framing format."""

    def __init__(self, content: Any) -> None:
        try:
            import snappy
        except ModuleNotFoundError:
            raise FileRejectedError("Reading snappy needs the package python-snappy: install volstream[snappy].") from None
        self._content = content
        self._decompressor = snappy.StreamDecompressor()
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        import cramjam

        while not self._rest and (block := self._content.read(_BLOCK_BYTES)):
            try:
                self._rest = self._decompressor.decompress(block)
            except cramjam.DecompressionError as error:
                raise OSError(str(error)) from None
        if not self._rest and self._decompressor.remains:
            raise EOFError("it ends within a block")
        block, self._rest = self._rest[:size], self._rest[size:]
        return block


class _Unclosable(io.RawIOBase):
    """Content that stays open when PyArrow closes this object."""

    def __init__(self, content: Any) -> None:
        self._content = content

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block: bytes = self._content.read(size)
        return block


class _Xz(io.RawIOBase):
    """The content of the streams of an xz file, with zeros between them. Python's own reader takes unreadable
    data for the end."""

    def __init__(self, content: Any) -> None:
        self._content = content
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._decoder.eof:
                rest = self._decoder.unused_data.lstrip(b"\0")
                while not rest and (block := self._content.read(_BLOCK_BYTES)):
                    rest = block.lstrip(b"\0")
                if not rest:
                    return 0
                self._decoder, self._rest = lzma.LZMADecompressor(lzma.FORMAT_XZ), rest
            data, self._rest = self._rest, b""
            if not data and self._decoder.needs_input:
                data = self._content.read(_BLOCK_BYTES)
                if not data:
                    raise EOFError("it is cut off")
            decompressed = self._decoder.decompress(data, len(buffer))
            if decompressed:
                buffer[: len(decompressed)] = decompressed
                return len(decompressed)


def _by_arrow(codec: str, content: Any) -> Any:
    return pa.CompressedInputStream(_Unclosable(content), codec)


#: The first bytes of compressed files, the name of the compression, and its reader.
_COMPRESSIONS: Sequence[tuple[re.Pattern[bytes], str, Callable[[Any], Any]]] = [
    # Zeros after the last member are not an error, unlike for Arrow.
    (re.compile(rb"\x1f\x8b\x08"), "gzip", lambda content: gzip.GzipFile(fileobj=content, mode="rb")),
    (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), "bzip2", partial(_by_arrow, "bz2")),
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), "zstd", partial(_by_arrow, "zstd")),
    (re.compile(rb"\x04\x22\x4d\x18"), "lz4", partial(_by_arrow, "lz4")),
    (re.compile(rb"\xfd7zXZ\x00"), "xz", _Xz),
    (re.compile(rb"\xff\x06\x00\x00sNaPpY"), "snappy", _Snappy),
]

#: The first bytes of files that are not text in any encoding.
_MAGIC = {b"PAR1": "a Parquet file", b"%PDF": "a PDF", b"\xd0\xcf\x11\xe0": "a document of an office program, such as Excel"}


def max_expanded_size(size: int) -> int:
    """Returns the maximum expanded size of a file of ``size`` bytes."""
    return max(_MAX_EXPANDED, size * _MAX_FACTOR)


class _Expanding(io.BufferedIOBase):
    """Decompressed content. Reading fails when it exceeds the file's maximum expanded size."""

    def __init__(self, content: Any, compression: str, expansion: Expansion) -> None:
        self._content = content
        self._compression = compression
        self._expansion = expansion
        self._expanded = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        with _reading(self._compression):
            block: bytes = self._content.read(size)
        self._expanded += len(block)
        self._expansion.check(self._expanded)
        return block


#: The errors of the standard library and PyArrow for broken content. The archive modules check little.
_BROKEN = (
    *(OSError, EOFError, NotImplementedError, ValueError, IndexError, RecursionError, struct.error),
    *(zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile),
)


#: PyArrow's errors for broken columnar files.
_UNREADABLE = (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError)


def _reading(compression: str) -> AbstractContextManager[None]:
    """Turns errors of decompression in the block into rejections of the file."""
    return _rejecting(_BROKEN, f"decompressed ({compression})")


@contextmanager
def _rejecting(errors: tuple[type[Exception], ...], how: str) -> Iterator[None]:
    """Turns errors in the block into rejections of the file, except lack of memory and system errors, which
    have a number."""
    try:
        yield
    except errors as error:
        if getattr(error, "errno", None) is not None or isinstance(error, MemoryError):
            raise
        raise FileRejectedError(f"The file cannot be {how}: {error}.") from None


def texts(part: Part, encoding: str) -> Iterator[str]:
    """Yields the content as text, without a byte order mark.

    Raises:
        FileRejectedError: it is not in the encoding.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    content, position, begun = part.open(), 0, False
    while True:
        block = content.read(_BLOCK_BYTES)
        if not position:
            _check_begin(block, encoding)
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise not_encoded(encoding, f"near byte {position + error.start}") from None
        if text:
            yield text if begun else text.removeprefix("\ufeff")
            begun = True
        if not block:
            return
        position += len(block)


def _check_begin(block: bytes, encoding: str) -> None:
    """Raises FileRejectedError if the first bytes show that a file is not text in this encoding."""
    if kind := next((kind for magic, kind in _MAGIC.items() if block.startswith(magic)), None):
        raise FileRejectedError(f"The file is not text but {kind}, although its name says otherwise.")
    is_wide = block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not block.startswith(codecs.BOM_UTF32_LE)
    if is_wide and "16" not in encoding:
        raise FileRejectedError("The file is UTF-16 text. Set encoding=utf-16.")


def not_encoded(encoding: str, where: str) -> FileRejectedError:
    """Returns the rejection of a file that is not in its encoding."""
    return FileRejectedError(
        f"The file is not {encoding} text ({where}). If it has another encoding, name it: encoding=latin-1, for example."
    )


def reading_as(format_: str) -> AbstractContextManager[None]:
    """Turns PyArrow's errors in the block into rejections of the file."""
    return _rejecting(_UNREADABLE, f"read as {format_}")
