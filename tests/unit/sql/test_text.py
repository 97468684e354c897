"""The one function that writes texts into SQL."""

from __future__ import annotations

import pytest

from tests.corpus import HOSTILE
from volstream.errors import InvalidValueError
from volstream.sql.text import literal
from volstream.sql.tokens import tokenize


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:40])
def test_a_literal_is_one_line_without_variables_that_is_read_as_its_text(text: str) -> None:
    written = literal(text)
    assert written.splitlines() == [written]
    assert not {*written} & {"$", "\0", "\x1b", "\x7f", "\x9b"}
    (token,) = tokenize(written)
    assert token.text == text


@pytest.mark.parametrize("text", ["\ud800", "a\udfff.txt", "\udc80'"], ids=ascii)
def test_a_text_that_utf8_cannot_encode_has_no_literal(text: str) -> None:
    with pytest.raises(InvalidValueError, match="lone surrogate"):
        literal(text)
