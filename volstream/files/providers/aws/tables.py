"""Delta tables in S3: pyarrow's filesystem, exclusive creation of files. Options are deltalake's ``AWS_``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit

from pyarrow import fs

from volstream.files.providers.access import Access, KeyFiles, Keys
from volstream.files.providers.aws import is_own, key_files

_FILES = KeyFiles()

#: Buckets, with their access, whose store is known to support conditional writes.
_safe: set[tuple[str, Access]] = set()


def filesystem(options: Mapping[str, str]) -> fs.FileSystem:
    """See :meth:`~volstream.files.providers.base.TableStore.filesystem`."""
    if "AWS_ACCESS_KEY_ID" not in options:
        _FILES.check(*key_files())
    return _filesystem(tuple(sorted(options.items())))


def can_create(location: str, options: Mapping[str, str]) -> bool:
    """See :meth:`~volstream.files.providers.base.TableStore.can_create`. Probes foreign stores once."""
    if find_spec("boto3") is None:
        return False
    place, access = urlsplit(location), _access(options)
    if not is_own(access.endpoint) and (place.netloc, access) not in _safe:
        from volstream.files.providers.aws.conditional import check_conditions

        check_conditions(access, place.netloc, place.path.strip("/"))
        _safe.add((place.netloc, access))
    return True


def create_file(location: str, options: Mapping[str, str], content: bytes) -> bool:
    """See :meth:`~volstream.files.providers.base.TableStore.create_file`."""
    from volstream.files.providers.aws.conditional import create_object

    place = urlsplit(location)
    return create_object(_access(options), place.netloc, place.path.lstrip("/"), content)


def _access(settings: Mapping[str, str]) -> Access:
    """Returns the access to a store."""
    keys = None
    if "AWS_ACCESS_KEY_ID" in settings:
        keys = Keys(settings["AWS_ACCESS_KEY_ID"], settings.get("AWS_SECRET_ACCESS_KEY", ""), settings.get("AWS_SESSION_TOKEN"))
    endpoint, source = settings.get("AWS_ENDPOINT_URL"), "static" if keys else "env"
    return Access("s3", settings.get("AWS_REGION"), endpoint, credentials=source, keys=keys)


@_FILES.cached
def _filesystem(options: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    settings = dict(options)
    if not is_own(settings.get("AWS_ENDPOINT_URL")):
        # Other stores do not support the trailing checksums of Amazon's SDK, nor their encoding. pyarrow
        # takes this option only from the environment.
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "WHEN_REQUIRED")
    return fs.S3FileSystem(
        access_key=settings.get("AWS_ACCESS_KEY_ID"),
        secret_key=settings.get("AWS_SECRET_ACCESS_KEY"),
        session_token=settings.get("AWS_SESSION_TOKEN"),
        region=settings.get("AWS_REGION"),
        endpoint_override=settings.get("AWS_ENDPOINT_URL"),
        # One request per small file instead of three.
        allow_delayed_open=True,
        force_virtual_addressing=settings.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() == "true",
    )
