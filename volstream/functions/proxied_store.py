"""Stores that a process lends to its child, in whose environment the packages that reach them are missing.

The child asks over channels, one for each of its threads and open files; threads of the parent answer. All end with the child.
"""

from __future__ import annotations

import io
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from volstream.base.model.paths import FileInfo, Finding, Selection
from volstream.errors import StorageError, reason_of
from volstream.files.storage.base import Details, ObjectStore
from volstream.functions.steps import BlobStore

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: Bytes that an open file fetches at once.
_BUFFER = 256 << 10


def lend(store: ObjectStore | BlobStore) -> socket.socket:
    """Lends a store to a child that inherits the socket, and has a proxy for it. Close the socket once the child has it."""
    here, there = socket.socketpair()
    threading.Thread(target=_lend, args=(here, store), name="lent store", daemon=True).start()
    return there


def _lend(control: socket.socket, store: ObjectStore | BlobStore) -> None:
    """Answers on each channel that the child sends, until it has ended."""
    with control:
        while channels := socket.recv_fds(control, 1, 1)[1]:
            threading.Thread(target=_answer, args=(Connection(channels[0]), store), name="lent store", daemon=True).start()


def _answer(channel: Connection, target: Any) -> None:
    """Calls methods of the store; after one that opens a file, of that file."""
    try:
        while True:
            method, arguments = channel.recv()
            try:
                value = getattr(target, method)(*arguments)
            except Exception as error:  # noqa: BLE001  # the child raises it
                channel.send((False, _portable(error)))
                continue
            if method == "open":
                target, value = value, None
            channel.send((True, value))
    except (EOFError, OSError):  # the child has closed its end
        pass
    finally:
        if isinstance(target, io.IOBase):
            target.close()
        channel.close()


def _portable(error: Exception) -> Exception:
    """Returns an error that the child can unpickle: not one of a package that it lacks."""
    if type(error).__module__.partition(".")[0] in ("builtins", "volstream"):
        return error
    return StorageError(reason_of(error))


class _Proxy:
    """A store of the parent, in the child. Thread-safe.

    Args:
        control: a socket's descriptor, of :func:`lend`.
    """

    def __init__(self, control: int) -> None:
        self._control = control
        self._own = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._control,))

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Asks on this thread's channel."""
        channel: _LentFile | None = getattr(self._own, "channel", None)
        if channel is None or channel.closed:
            channel = self._own.channel = _LentFile(self._channel())
        return channel.ask(method, *arguments)

    def _channel(self) -> Connection:
        here, there = socket.socketpair()
        with there, socket.socket(fileno=os.dup(self._control)) as control:
            socket.send_fds(control, [b"\0"], [there.fileno()])
        return Connection(here.detach())


class ProxiedStore(_Proxy):
    """The parent's store of a volume's files."""

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        """See :meth:`ObjectStore.list`. A function lists nothing."""
        raise NotImplementedError

    def head(self, path: str) -> FileInfo | None:
        """See :meth:`ObjectStore.head`."""
        return cast("FileInfo | None", self._ask("head", path))

    def open(self, path: str) -> BinaryIO:
        """See :meth:`ObjectStore.open`."""
        file = _LentFile(self._channel())
        try:
            file.ask("open", path)
        except BaseException:
            file.close()
            raise
        # Typeshed does not declare BufferedReader as a BinaryIO.
        return cast("BinaryIO", io.BufferedReader(file, _BUFFER))

    def url(self, path: str) -> str:
        """See :meth:`ObjectStore.url`."""
        return str(self._ask("url", path))

    def details(self, path: str) -> Details:
        """See :meth:`HasDetails.details`."""
        return cast("Details", self._ask("details", path))

    def tags(self, path: str) -> Mapping[str, str]:
        """See :meth:`HasDetails.tags`."""
        return cast("Mapping[str, str]", self._ask("tags", path))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See :meth:`HasDetails.read_range`."""
        return cast("bytes", self._ask("read_range", path, start, length))

    def presigned_url(self, path: str, seconds: int) -> str:
        """See :meth:`HasDetails.presigned_url`."""
        return str(self._ask("presigned_url", path, seconds))


class ProxiedBlobs(_Proxy):
    """The parent's store of the values of steps."""

    def read(self, name: str) -> bytes | None:
        """See :meth:`BlobStore.read`."""
        return cast("bytes | None", self._ask("read", name))

    def write(self, name: str, blob: bytes) -> None:
        """See :meth:`BlobStore.write`."""
        self._ask("write", name, blob)

    def remove(self, name: str) -> None:
        """See :meth:`BlobStore.remove`."""
        self._ask("remove", name)


class _LentFile(io.RawIOBase):
    """A channel, and the file that was opened on it."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel

    def ask(self, method: str, *arguments: Any) -> Any:
        """Returns the answer of the parent, or raises it."""
        try:
            self._channel.send((method, arguments))
            well, value = self._channel.recv()
        except BaseException:  # the function's time limit: the answer to come would be taken for that to the next question
            self.close()
            raise
        if not well:
            raise value
        return value

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self.ask("tell"))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self.ask("seek", offset, whence))

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self.ask("read", len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return bytes(self.ask("read"))

    def close(self) -> None:
        self._channel.close()
        super().close()
