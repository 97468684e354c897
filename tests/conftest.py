"""For all tests: logs of every level, so that a test may look for any line; no time limits for generated examples."""

import gc
import os
from pathlib import Path
from typing import Any

import hypothesis

from volstream.base import log
from volstream.files import queues, storage

# All that collecting makes stays until the end, and looking through it again and again takes half of the time of collecting.
gc.disable()

log.configure("debug")

queues._BACKENDS["memory"] = "tests.memory:MemoryQueue"
storage._BACKENDS["memory"] = "tests.memory:MemoryStore"

# Children and Spark's workers unpickle stores of these tests, and have neither the current folder nor pytest's path.
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])

# Output that is captured is as wide as it likes, and not as the terminal of who runs the tests.
os.environ.pop("COLUMNS", None)

# A deadline asserts how fast the machine is, and so does Hypothesis's check of its own speed. `make test-long` takes the other
# profile.
_ANY_MACHINE: Any = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("short", max_examples=40, **_ANY_MACHINE)
hypothesis.settings.register_profile("long", max_examples=400, **_ANY_MACHINE)
hypothesis.settings.load_profile("short")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
