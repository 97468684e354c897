"""For all tests: logs of every level, so that a test may look for any line; no time limits for generated examples."""

import gc
import os
from pathlib import Path

import hypothesis

from volstream.base import log

# All that collecting makes stays until the end, and looking through it again and again takes half of the time of collecting.
gc.disable()

log.configure("debug")

# Children and Spark's workers unpickle stores of these tests, and have neither the current folder nor pytest's path.
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])

# Output that is captured is as wide as it likes, and not as the terminal of who runs the tests.
os.environ.pop("COLUMNS", None)

# A deadline asserts how fast the machine is. `make test-long` takes the other profile.
hypothesis.settings.register_profile("short", deadline=None, max_examples=40)
hypothesis.settings.register_profile("long", deadline=None, max_examples=400)
hypothesis.settings.load_profile("short")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
