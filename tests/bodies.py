"""Minimal messages of the providers about objects in the bucket ``photos``."""

from __future__ import annotations

import json
from urllib.parse import quote, quote_plus


def s3_body(*keys: str) -> bytes:
    records = [{"s3": {"bucket": {"name": "photos"}, "object": {"key": quote_plus(key, safe="/")}}} for key in keys]
    return json.dumps({"Records": records}).encode()


def oss_body(*keys: str) -> bytes:
    events = [
        {"eventName": "ObjectCreated:PutObject", "oss": {"bucket": {"name": "photos"}, "object": {"key": key}}} for key in keys
    ]
    return json.dumps({"events": events}).encode()


def azure_body(key: str, kind: str = "BlobCreated", api: str = "PutBlob") -> bytes:
    data = {
        "api": api,
        "blobType": "BlockBlob",
        "url": f"https://account.blob.core.windows.net/photos/{quote(key)}",
        "sequencer": "0",
    }
    subject = f"/blobServices/default/containers/photos/blobs/{key}"
    return json.dumps(
        {"topic": "t", "subject": subject, "eventType": f"Microsoft.Storage.{kind}", "id": "1", "data": data}
    ).encode()


def gcs_body(key: str, kind: str = "OBJECT_FINALIZE") -> bytes:
    said = {"bucketId": "photos", "objectId": key, "eventType": kind, "objectGeneration": "1", "payloadFormat": "NONE"}
    said["notificationConfig"] = "projects/_/buckets/photos/notificationConfigs/1"
    return json.dumps({"message": {"attributes": said, "data": ""}}).encode()
