"""Local servers for tests of buckets and queues. None of these tests needs Spark, and the engine's fixture is lazy."""

from __future__ import annotations

from tests.broker import broker
from tests.clouds import answers, cloud, localstack, mns, moto, oss, s3, seaweedfs, sqs

__all__ = ["answers", "broker", "cloud", "localstack", "mns", "moto", "oss", "s3", "seaweedfs", "sqs"]
