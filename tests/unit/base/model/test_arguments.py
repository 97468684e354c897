"""What an error of a public call shows in a program."""

from __future__ import annotations

import traceback
from types import FunctionType

import pytest

from volstream.base.model.arguments import checked
from volstream.errors import StorageError


class Collection:
    def get(self, name: str) -> None:
        """Fails deep inside."""
        try:
            self._request(name)
        except OSError as error:
            raise StorageError(f"{name} cannot be read.") from error

    def _request(self, name: str) -> None:
        raise OSError(f"connection to {name} lost")


checked(Collection)


def test_an_error_shows_the_callers_line_and_the_message_and_keeps_its_cause() -> None:
    with pytest.raises(StorageError) as caught:
        Collection().get("a")
    shown = "".join(traceback.format_exception(caught.value))
    assert 'Collection().get("a")' in shown
    assert "StorageError: a cannot be read." in shown
    assert "_request" not in shown
    assert shown.count("  File ") == 2
    assert isinstance(caught.value.__context__, OSError)


def test_other_code_of_volstream_gets_the_error_as_it_is() -> None:
    inside = {"__name__": "volstream.cli.job", "Collection": Collection}
    code = compile("def call():\n    Collection().get('a')\n", "job.py", "exec")
    exec(code, inside)  # noqa: S102
    call = inside["call"]
    assert isinstance(call, FunctionType)
    with pytest.raises(StorageError) as caught:
        call()
    assert "_request" in "".join(traceback.format_exception(caught.value))
    assert isinstance(caught.value.__cause__, OSError)


def test_errors_of_others_keep_their_frames() -> None:
    with pytest.raises(AttributeError) as caught:
        checked(lambda: Collection.nothing)()  # type: ignore[attr-defined]
    assert len(traceback.extract_tb(caught.value.__traceback__)) > 2


def test_a_handle_of_an_object_has_the_methods_that_take_its_name() -> None:
    from volstream.api.objects.collections import Streams
    from volstream.api.objects.jobs import Jobs
    from volstream.api.objects.volumes import Volumes

    assert {"run", "retry", "history", "revert"} <= Jobs.of_one()
    assert {"refresh", "drop"} <= Volumes.of_one()
    assert {"reset"} <= Streams.of_one()
