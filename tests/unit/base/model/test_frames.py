"""Where in the user's code a function failed."""

from __future__ import annotations

import json
import traceback

from volstream.base.model.text import frames


def _load(text: str) -> object:
    return json.loads(text)


def test_the_last_frame_of_the_users_code_comes_before_the_innermost() -> None:
    try:
        try:
            _load("{1")
        except ValueError as error:
            raise KeyError("another, before it") from error
    except KeyError as error:
        shown = "".join(traceback.format_exception(error.__cause__))
        both = "".join(traceback.format_exception(error))
    [own, inner] = frames(shown)
    assert (own[0], own[2]) == (__file__, "_load")
    assert inner[0].endswith("/json/decoder.py")
    assert [frame[2] for frame in frames(both)] == ["test_the_last_frame_of_the_users_code_comes_before_the_innermost"]
    assert frames(None) == frames("ValueError: no frames") == []


def test_a_function_of_an_installed_package_has_its_innermost_frame() -> None:
    shown = 'Traceback (most recent call last):\n  File "/v/lib/python3.12/site-packages/a/b.py", line 7, in f\nValueError: x\n'
    assert frames(shown) == [("/v/lib/python3.12/site-packages/a/b.py", "7", "f")]
