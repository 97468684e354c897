"""What Spark's Python workers are forked from: PySpark's own daemon, with what runs per-file functions imported once.

Spark ends a worker that had nothing to do for a minute. The next one would import a second long; a fork has it all.
"""

from __future__ import annotations

import gc

import volstream.functions.worker  # noqa: F401  # for the forks

if __name__ == "__main__":
    from pyspark.daemon import manager

    gc.freeze()  # what is here stays, and pages of it are not copied for looking at them
    manager()
