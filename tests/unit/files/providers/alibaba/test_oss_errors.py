"""What OSS answers, as errors."""

from __future__ import annotations

import pytest
from oss2.exceptions import ServerError

from volstream.errors import StorageError, StorageThrottledError
from volstream.files.providers.alibaba.store import _errors


@pytest.mark.parametrize("status", [404, 403, 503, 520, 599])
def test_an_answer_without_text_is_an_error_of_the_store_whatever_its_status(status: int) -> None:
    with pytest.raises(StorageError, match=f"({status})"), _errors("oss://bucket/key"):
        raise ServerError(status, {}, b"", {})


@pytest.mark.parametrize(("status", "code"), [(503, "QpsLimitExceeded"), (429, ""), (403, "Throttling.User")])
def test_too_many_requests_are_told_apart_from_other_errors(status: int, code: str) -> None:
    with pytest.raises(StorageThrottledError), _errors("oss://bucket/key"):
        raise ServerError(status, {}, b"", {"Code": code})
