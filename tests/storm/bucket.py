"""The files of a storm's volume in a bucket of a cloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.buckets import BUCKET, Cloud
from tests.storm.files import Files


class BucketFiles(Files):
    """Files below a prefix of the cloud's bucket. What is moved is a new object, as everywhere in buckets."""

    def __init__(self, cloud: Cloud, seed: str) -> None:
        super().__init__(f"{cloud.kind}://{BUCKET}/storm/", seed)
        self._bucket = cloud.bucket()

    def contents(self) -> Mapping[str, str]:
        return self._bucket.texts("storm/")

    def _write(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._bucket.put(f"storm/{path}", self.texts[path].encode())

    def _remove(self, paths: Sequence[str], folder: str | None = None) -> None:
        for path in paths:
            self._bucket.delete(f"storm/{path}")

    def _rename(self, moved: Mapping[str, str], folders: tuple[str, str] | None = None) -> None:
        for old, new in moved.items():
            self._bucket.put(f"storm/{new}", self.texts[new].encode())
            self._bucket.delete(f"storm/{old}")
