"""The process from which Spark's Python workers are forked: PySpark's daemon with the function runner already imported.

Spark ends workers after a minute without work. A new process would spend a second on imports, which a fork inherits.
"""

from __future__ import annotations

import gc

import volstream.functions.worker  # noqa: F401  # inherited by the forks

if __name__ == "__main__":
    from pyspark.daemon import manager

    gc.freeze()  # keeps the collector from touching, and so copying, these pages
    manager()
