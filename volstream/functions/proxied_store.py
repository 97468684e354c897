"""Lends a process's stores to its child, whose environment lacks the packages that access them.

The child sends requests over channels, one for each of its threads and open files. Threads of the parent
reply. All end with the child.
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

#: Bytes that an open file fetches at a time.
_BUFFER = 256 << 10


def lend(store: ObjectStore | BlobStore) -> socket.socket:
    """Lends a store to a child that inherits the socket and has a proxy for it. Close the socket once the
    child has it."""
    parent, child = socket.socketpair()
    threading.Thread(target=_serve, args=(parent, store), name="lent store", daemon=True).start()
    return child


def _serve(control: socket.socket, store: ObjectStore | BlobStore) -> None:
    """Replies on each channel that the child sends, until the child ends."""
    with control:
        while channels := socket.recv_fds(control, 1, 1)[1]:
            threading.Thread(target=_serve_channel, args=(Connection(channels[0]), store), name="lent store", daemon=True).start()


def _serve_channel(channel: Connection, target: Any) -> None:
    """Calls methods of the store or, after a call that opens a file, of that file."""
    try:
        while True:
            method, arguments = channel.recv()
            try:
                value = getattr(target, method)(*arguments)
            except Exception as error:  # noqa: BLE001  # raised in the child
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
    """Returns an error that the child can unpickle, without classes of packages that it lacks."""
    if type(error).__module__.partition(".")[0] in ("builtins", "volstream"):
        return error
    return StorageError(reason_of(error))


class _Proxy:
    """The parent's store, as seen in the child. Thread-safe.

    Args:
        control: descriptor of the socket from :func:`lend`.
    """

    def __init__(self, control: int) -> None:
        self._control = control
        self._local = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._control,))

    def _request(self, method: str, *arguments: Any) -> Any:
        """Sends a request on this thread's channel. Returns the reply."""
        channel: _LentFile | None = getattr(self._local, "channel", None)
        if channel is None or channel.closed:
            channel = self._local.channel = _LentFile(self._channel())
        return channel.request(method, *arguments)

    def _channel(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs, socket.socket(fileno=os.dup(self._control)) as control:
            socket.send_fds(control, [b"\0"], [theirs.fileno()])
        return Connection(ours.detach())


class ProxiedStore(_Proxy):
    """The parent's store of a volume's files."""

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        """See :meth:`ObjectStore.list`. A function lists nothing."""
        raise NotImplementedError

    def head(self, path: str) -> FileInfo | None:
        """See :meth:`ObjectStore.head`."""
        return cast("FileInfo | None", self._request("head", path))

    def open(self, path: str) -> BinaryIO:
        """See :meth:`ObjectStore.open`."""
        file = _LentFile(self._channel())
        try:
            file.request("open", path)
        except BaseException:
            file.close()
            raise
        # Typeshed does not declare BufferedReader as a BinaryIO.
        return cast("BinaryIO", io.BufferedReader(file, _BUFFER))

    def url(self, path: str) -> str:
        """See :meth:`ObjectStore.url`."""
        return str(self._request("url", path))

    def details(self, path: str) -> Details:
        """See :meth:`HasDetails.details`."""
        return cast("Details", self._request("details", path))

    def tags(self, path: str) -> Mapping[str, str]:
        """See :meth:`HasDetails.tags`."""
        return cast("Mapping[str, str]", self._request("tags", path))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See :meth:`HasDetails.read_range`."""
        return cast("bytes", self._request("read_range", path, start, length))

    def presigned_url(self, path: str, seconds: int) -> str:
        """See :meth:`HasDetails.presigned_url`."""
        return str(self._request("presigned_url", path, seconds))


class ProxiedBlobs(_Proxy):
    """The parent's store of the values of steps."""

    def read(self, name: str) -> bytes | None:
        """See :meth:`BlobStore.read`."""
        return cast("bytes | None", self._request("read", name))

    def write(self, name: str, blob: bytes) -> None:
        """See :meth:`BlobStore.write`."""
        self._request("write", name, blob)

    def remove(self, name: str) -> None:
        """See :meth:`BlobStore.remove`."""
        self._request("remove", name)


class _LentFile(io.RawIOBase):
    """A channel, and the file that was opened on it."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel

    def request(self, method: str, *arguments: Any) -> Any:
        """Returns the parent's reply, or raises its error."""
        try:
            self._channel.send((method, arguments))
            succeeded, value = self._channel.recv()
        except BaseException:  # the time limit: the reply would be taken for that to the next request
            self.close()
            raise
        if not succeeded:
            raise value
        return value

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self.request("tell"))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self.request("seek", offset, whence))

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self.request("read", len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return bytes(self.request("read"))

    def close(self) -> None:
        self._channel.close()
        super().close()
