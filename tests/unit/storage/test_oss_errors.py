"""What OSS answers, as errors."""

from __future__ import annotations

import pytest
from oss2.exceptions import ServerError

from volstream.errors import StorageError
from volstream.storage.oss import _errors


@pytest.mark.parametrize("status", [404, 403, 503, 520, 599])
def test_an_answer_without_text_is_an_error_of_the_store_whatever_its_status(status: int) -> None:
    with pytest.raises(StorageError, match=f"({status})"), _errors("oss://bucket/key"):
        raise ServerError(status, {}, b"", {})
