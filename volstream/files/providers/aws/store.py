"""The objects of an S3 bucket, Amazon's or S3-compatible.

Not here: code shared by all providers' buckets (``storage.buckets``); credentials, retries and error mapping
(``credentials``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC
from typing import Any

from volstream.base.model.paths import printable
from volstream.errors import StorageError
from volstream.files.providers.access import Access
from volstream.files.providers.aws import credentials, is_own
from volstream.files.storage.base import Details
from volstream.files.storage.buckets import Content, Found, Listed, PartedStore


class S3Store(PartedStore):
    """The objects of ``s3://bucket[/prefix]``. With Amazon, a pickled store works for an hour or more."""

    def details(self, path: str) -> Details:
        """See :meth:`HasDetails.details`."""
        reply = self._request_object(path, "head_object")
        return Details(reply.get("Metadata", {}), reply.get("StorageClass", "STANDARD"), reply.get("VersionId"))

    def tags(self, path: str) -> Mapping[str, str]:
        """See :meth:`HasDetails.tags`."""
        return {tag["Key"]: tag["Value"] for tag in self._request_object(path, "get_object_tagging")["TagSet"]}

    def presigned_url(self, path: str, seconds: int) -> str:
        """See :meth:`HasDetails.presigned_url`."""
        with self._errors(path):
            return str(self._client.generate_presigned_url("get_object", self._at(path), ExpiresIn=seconds))

    def remove(self, path: str) -> None:
        """See :meth:`Writable.remove`."""
        self._ask(path, "delete_object")

    def _put(self, path: str, content: bytes, content_type: str | None) -> str:
        return str(self._ask(path, "put_object", Body=content, **_typed(content_type))["ETag"])

    def _copy_whole(self, path: str, to: str, etag: str, replaces: bool) -> str:  # noqa: ARG002  # the response has it
        parameters = {"CopySource": self._at(path), **self._if_absent("CopyObject", replaces)}
        return str(self._request_object(to, "copy_object", **parameters)["CopyObjectResult"]["ETag"])

    def _begin_parts(self, path: str, content_type: str | None) -> str:
        return str(self._ask(path, "create_multipart_upload", **_typed(content_type))["UploadId"])

    def _put_part(self, path: str, upload: str, number: int, part: bytes) -> str:
        return str(self._ask(path, "upload_part", UploadId=upload, PartNumber=number, Body=part)["ETag"])

    def _copy_part(self, path: str, to: str, upload: str, number: int, extent: tuple[int, int]) -> str:
        source = {"CopySource": self._at(path), "CopySourceRange": f"bytes={extent[0]}-{extent[1]}"}
        reply = self._ask(to, "upload_part_copy", UploadId=upload, PartNumber=number, **source)
        return str(reply["CopyPartResult"]["ETag"])

    def _complete_parts(self, path: str, upload: str, etags: Sequence[tuple[int, str]], replaces: bool) -> str:
        parts = {"Parts": [{"PartNumber": number, "ETag": etag} for number, etag in etags]}
        parameters = {"UploadId": upload, "MultipartUpload": parts, **self._if_absent("CompleteMultipartUpload", replaces)}
        return str(self._ask(path, "complete_multipart_upload", **parameters)["ETag"])

    def _uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        for page in self._paged(prefix, "list_multipart_uploads"):
            for upload in page.get("Uploads", ()):
                yield upload["Key"].removeprefix(self._place.root), upload["UploadId"]

    def _abort_parts(self, path: str, upload: str) -> None:
        self._ask(path, "abort_multipart_upload", UploadId=upload)

    @property
    def _client(self) -> Any:
        return credentials.client(self._access, "s3")

    def _pages(self, prefix: str, after: str, *, deep: bool) -> Iterator[tuple[Iterable[Listed], Iterable[str]]]:
        parameters = {} if deep else {"Delimiter": "/"}
        if after:
            parameters["StartAfter"] = self._place.root + after
        for page in self._paged(prefix, "list_objects_v2", **parameters, PaginationConfig={"PageSize": self._page}):
            self._seen = time.monotonic()
            self._check_keys(page, self._place.root + prefix)
            with self._errors(prefix):
                page["IsTruncated"]  # a proxy's page lacks it, and would look like an empty bucket
                listed = [
                    (obj["Key"], obj["Size"], obj["LastModified"].astimezone(UTC), obj["ETag"])
                    for obj in page.get("Contents", ())
                ]
                prefixes = [common["Prefix"] for common in page.get("CommonPrefixes", ())]
            yield listed, prefixes

    def _paged(self, prefix: str, what: str, **more: Any) -> Iterator[Any]:
        with self._errors(prefix):
            pages = self._client.get_paginator(what)
            yield from pages.paginate(Bucket=self._place.bucket, Prefix=self._place.root + prefix, **more)

    def _check_keys(self, page: Any, prefix: str) -> None:
        """Raises StorageError if a listing has keys outside of ``prefix``: their paths would be wrong."""
        for obj in page.get("Contents", ()):
            if not obj["Key"].startswith(prefix):
                raise StorageError(
                    f"s3://{self._place.bucket}: the listing of keys below {printable(prefix)!r} contains the key "
                    f"{printable(obj['Key'])!r}.",
                    "The store may merge slashes: write single slashes in the location.",
                )

    def _at(self, path: str) -> dict[str, Any]:
        return {"Bucket": self._place.bucket, "Key": self._place.key(path)}

    def _head(self, path: str) -> Found:
        with self._errors(path):
            try:
                reply = self._client.head_object(Bucket=self._place.bucket, Key=self._key(path))
            except self._client.exceptions.ClientError as exc:
                status = credentials.status(exc)
                if status == 404 or (status == 403 and self._is_absent(self._key(path))):
                    raise FileNotFoundError(path) from None
                raise
        modified = reply["LastModified"].astimezone(UTC)
        return Found(reply["ContentLength"], modified, reply["ETag"], reply.get("ContentType"))

    def _fetch(self, path: str, start: int, last: int | None = None) -> Content:
        options = {} if start == 0 and last is None else {"Range": f"bytes={start}-{'' if last is None else last}"}
        reply = self._request_object(path, "get_object", **options)
        return Content(start + reply["ContentLength"], reply["ETag"], reply["Body"])

    def _request_object(self, path: str, what: str, **more: Any) -> Any:
        """Sends a request about an object and returns the response. Raises FileNotFoundError."""
        self._key(path)
        with self._errors(path):
            try:
                return getattr(self._client, what)(**self._at(path), **more)
            except self._client.exceptions.ClientError as exc:
                if credentials.status(exc) == 404 and exc.response["Error"].get("Code") != "NoSuchBucket":
                    raise FileNotFoundError(path) from exc
                raise

    def _ask(self, path: str, what: str, **more: Any) -> Any:
        with self._errors(path):
            return getattr(self._client, what)(**self._at(path), **more)

    def _is_absent(self, key: str) -> bool:
        """True if a listing lacks the key: with list permission for a prefix, S3 returns 403 for missing
        keys."""
        page = self._client.list_objects_v2(Bucket=self._place.bucket, Prefix=key, MaxKeys=1)
        return all(obj["Key"] != key for obj in page.get("Contents", ()))

    def _check_bucket(self) -> None:
        with self._errors(""):
            self._client.list_objects_v2(Bucket=self._place.bucket, Prefix=self._place.root, MaxKeys=1)

    def _if_absent(self, operation: str, replaces: bool) -> Mapping[str, str]:
        """Returns the condition that no object has the key. Empty for a request that may replace one.

        Compatible stores may refuse requests with the condition, and boto3 before 2025 does not support it
        for copies.
        """
        known = not replaces and is_own(self._access.endpoint)
        members = self._client.meta.service_model.operation_model(operation).input_shape.members if known else ()
        return {"IfNoneMatch": "*"} if "IfNoneMatch" in members else {}

    def _errors(self, path: str) -> AbstractContextManager[None]:
        return credentials.errors(self._place.name(path))


def open_store(location: str, access: Access) -> S3Store:
    """Returns the store of a bucket or of a prefix."""
    return S3Store(location, access)


def _typed(content_type: str | None) -> Mapping[str, str]:
    return {} if content_type is None else {"ContentType": content_type}
