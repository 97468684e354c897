"""For tests of functions: a store in memory, and what runs a function over its objects. For those of buckets and queues: servers."""

from tests.clouds import answers, mns, oss, s3
from tests.running import isolated, run, store

__all__ = ["answers", "isolated", "mns", "oss", "run", "s3", "store"]
