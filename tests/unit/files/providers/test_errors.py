"""Errors of the providers' packages, as a store and a queue raise them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from volstream.errors import QueueError, StorageDeniedError, StorageError
from volstream.files.providers.access import Access
from volstream.files.providers.azure import credentials as azure
from volstream.files.providers.google import credentials as google

Errors = Callable[..., AbstractContextManager[None]]

BOTH = pytest.mark.parametrize("errors", [google.errors, lambda what, *kinds: azure.errors(what, Access("az"), *kinds)])


@BOTH
@pytest.mark.parametrize("kind", [StorageError, StorageDeniedError])
def test_an_error_of_a_store_passes_through_others_of_its_requests(errors: Errors, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="away") as raised, errors("outer"), errors("inner"):
        raise kind("It is away.")
    assert raised.value.__cause__ is None


@BOTH
def test_an_error_of_the_credentials_of_a_queue_is_one_of_the_queue(errors: Errors) -> None:
    with pytest.raises(QueueError, match="no keys") as raised, errors("The queue", QueueError, QueueError):
        raise StorageDeniedError("There are no keys.", "Write some.")
    assert raised.value.remedy == "Write some."
