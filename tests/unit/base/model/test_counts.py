"""Sums of what functions count."""

from __future__ import annotations

import pytest

from volstream.base.model.work import OTHERS, shown_counts, total_counts


def test_sums_have_at_most_a_hundred_names() -> None:
    sums = total_counts({str(at): 1 for at in range(150)}, {"0": 5, "149": 2})
    assert (sums["0"], sums["99"], sums[OTHERS]) == (6, 1, 52)
    assert len(sums) == 101


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (1532, "1,532"), (0.25, "0.25"), (1 / 3, "0.333333"), (1234567.891, "1,234,567.89")]
)
def test_counts_are_shown_with_the_digits_that_matter(number: float, text: str) -> None:
    assert shown_counts({"b": number, "a": 1}) == f"a 1, b {text}"


def test_a_name_of_several_words_is_quoted() -> None:
    assert shown_counts({"tokens": 3, "unexpected: words < 8": 1}) == "tokens 3, 'unexpected: words < 8' 1"
