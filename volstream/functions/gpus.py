"""The GPUs of a worker: its function sees these and no others, by ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from volstream.functions.source import own_folder

_VISIBLE = "CUDA_VISIBLE_DEVICES"

#: Locks of this host's GPUs, shared by all of the user's processes.
_LOCKS = Path(tempfile.gettempdir()) / f"volstream-gpus-{os.getuid()}"

_WAIT_SECONDS = 0.2

#: What this process had last: libraries keep the GPU with which they began.
_last: list[str] = []


def devices() -> Sequence[str]:
    """Returns the GPUs of this host that its processes may use."""
    visible = os.environ.get(_VISIBLE)
    if visible is not None:
        return [device.strip() for device in visible.split(",") if device.strip()]
    return sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))


@dataclass(frozen=True)
class Gpus:
    """What each worker needs.

    Attributes:
        number: of GPUs.
        devices: the host's; empty: Spark assigns them.
    """

    number: int
    devices: tuple[str, ...] = ()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Gives this process its GPUs for a block: those that Spark assigned, or ones that no other process has, once there are
        some.

        Raises:
            RuntimeError: Spark assigned too few.
        """
        with ExitStack() as held:
            mine = self._free(held) if self.devices else _assigned()
            while self.devices and len(mine) < self.number:  # another job's
                held.close()
                time.sleep(_WAIT_SECONDS)
                mine = self._free(held)
            if len(mine) < self.number:
                raise RuntimeError(f"A worker needs {self.number} GPUs, and Spark assigned {len(mine)}.")
            _last[:] = mine
            before = os.environ.get(_VISIBLE)
            os.environ[_VISIBLE] = ",".join(mine)
            try:
                yield
            finally:
                if before is None:
                    del os.environ[_VISIBLE]
                else:
                    os.environ[_VISIBLE] = before

    def _free(self, held: ExitStack) -> list[str]:
        own_folder(_LOCKS)
        mine: list[str] = []
        for device in sorted(self.devices, key=lambda device: device not in _last):
            if len(mine) == self.number:
                break
            descriptor = os.open(_LOCKS / device.replace("/", "_"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            held.callback(os.close, descriptor)
            mine.append(device)
        return mine


def _assigned() -> list[str]:
    from pyspark import TaskContext

    context = TaskContext.get()
    resources = {} if context is None else context.resources()
    return [*resources["gpu"].addresses] if "gpu" in resources else []
