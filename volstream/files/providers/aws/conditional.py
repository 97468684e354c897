"""Writes to S3 on the condition that an object does not exist yet."""

from __future__ import annotations

import random
import time
import uuid

from botocore.exceptions import ClientError

from volstream.errors import InvalidStateError
from volstream.files.providers.access import Access
from volstream.files.providers.aws.credentials import client, errors, status

#: How often a store may refuse both of two concurrent requests for an object before this is an error.
_CONFLICTS = 10


def check_conditions(access: Access, bucket: str, folder: str) -> None:
    """Raises InvalidStateError if a store lets one writer overwrite another's commit.

    Commits are written on the condition that they do not exist yet. Some S3-compatible stores silently ignore
    that. Writes and deletes an object to find out.
    """
    store, key = client(access, "s3"), f"{folder}/_probe-{uuid.uuid4().hex}"
    with errors(f"The warehouse's store at {access.endpoint}"):
        store.put_object(Bucket=bucket, Key=key, Body=b"")
        try:
            store.put_object(Bucket=bucket, Key=key, Body=b"", IfNoneMatch="*")
        except ClientError as error:
            if status(error) in (409, 412):
                return
            if status(error) not in (400, 501):  # from stores that do not support conditions
                raise
        finally:
            store.delete_object(Bucket=bucket, Key=key)
    raise InvalidStateError(
        f"The store at {access.endpoint} ignores If-None-Match on PUT requests, so two writers could overwrite each "
        "other's commits.",
        "Keep the warehouse on a file system, or in a store that supports it.",
    )


def create_object(access: Access, bucket: str, key: str, content: bytes) -> bool:
    """Writes a small object. Returns False if another object exists there.

    If the response to a request is lost, its repetition finds the object: equal content means success. A
    store may refuse both of two concurrent requests. Then this function tries again.
    """
    store, attempt = client(access, "s3"), 1
    with errors(f"Writing s3://{bucket}/{key}"):
        while True:
            try:
                store.put_object(Bucket=bucket, Key=key, Body=content, IfNoneMatch="*")
                return True
            except ClientError as error:
                if status(error) not in (409, 412):
                    raise
                refused = error
            try:
                return bool(store.get_object(Bucket=bucket, Key=key)["Body"].read() == content)
            except ClientError as missing:
                if status(missing) != 404 or attempt == _CONFLICTS:
                    raise refused from missing
            time.sleep(random.uniform(0.02, 0.2) * attempt)  # not for security
            attempt += 1
