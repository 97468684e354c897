"""Creates a bucket, a queue that is notified of its changes, and a dead letter queue, at any server of S3 and SQS.

    python localstack/wire_s3.py http://127.0.0.1:4566 --bucket demo --queue demo-events

For setting these up at Amazon itself, see ``deploy/aws``. Idempotent.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import boto3
from botocore.config import Config

REGION = "us-east-1"

#: How often a message may be received before it is dead. Each end of a daemon counts once for the messages it held.
_MOST_RECEIVES = 20


def wire(endpoint: str, bucket: str, queue: str, key_id: str = "test", secret: str = "test") -> str:
    """Creates everything and returns the queue's URL."""
    sqs, s3 = (_client(service, endpoint, key_id, secret) for service in ("sqs", "s3"))
    dead = _arn(sqs, sqs.create_queue(QueueName=f"{queue}-dead")["QueueUrl"])
    redrive = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": _MOST_RECEIVES})
    url: str = sqs.create_queue(QueueName=queue, Attributes={"VisibilityTimeout": "60", "RedrivePolicy": redrive})["QueueUrl"]
    s3.create_bucket(Bucket=bucket)
    told = {"QueueArn": _arn(sqs, url), "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={"QueueConfigurations": [told]})
    return url


def _client(service: str, endpoint: str, key_id: str, secret: str) -> Any:
    style = Config(s3={"addressing_style": "path"})
    return boto3.Session(key_id, secret, region_name=REGION).client(service, endpoint_url=endpoint, config=style)


def _arn(sqs: Any, url: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


def main() -> None:
    """Prints the queue's URL."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("endpoint")
    parser.add_argument("--bucket", default="demo")
    parser.add_argument("--queue", default="demo-events")
    said = parser.parse_args()
    print(wire(said.endpoint, said.bucket, said.queue), flush=True)


if __name__ == "__main__":
    main()
