"""For tests of buckets and queues: servers, on this machine. None of them needs Spark, and the engine's fixture is lazy."""

from tests.clouds import answers, mns, oss, s3

__all__ = ["answers", "mns", "oss", "s3"]
