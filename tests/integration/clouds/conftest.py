"""Local servers for tests of buckets and queues. None of these tests needs Spark, and the engine's fixture is lazy."""

from __future__ import annotations

from tests.broker import broker
from tests.clouds import answers, azurite, cloud, gcs, localstack, mns, moto, oss, pubsub, s3, seaweedfs, sqs

__all__ = ["answers", "azurite", "broker", "cloud", "gcs", "localstack", "mns", "moto", "oss", "pubsub", "s3", "seaweedfs", "sqs"]
