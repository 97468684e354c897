"""Object names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import volstream
from volstream.base.model.names import RESERVED_COLUMNS, Name
from volstream.errors import InvalidValueError


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("images", "public", "images"),
        ("Raw.Images", "raw", "images"),
        (" raw . images ", "raw", "images"),
        ("`my images`", "public", "my images"),
        ("`a.b`.`c``d`", "a.b", "c`d"),
        ("`ü`", "public", "ü"),
    ],
)
def test_valid_names_are_parsed(text: str, schema: str, name: str) -> None:
    assert Name.parse(text) == Name(schema, name)


@pytest.mark.parametrize(
    "text", ["", " ", "a b", "a.", ".a", "a.b.c", "1a", "`", "``", "`a", "a-b", "`a/b`", "`a\nb`", "`.a`", "`a:b`", "`..`", "a;"]
)
def test_invalid_names_are_rejected_with_a_remedy(text: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        Name.parse(text)
    assert refused.value.remedy


def test_the_sql_form_has_backticks_around_both_parts() -> None:
    assert Name("raw", "a`b").qualified == "`raw`.`a``b`"


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_any_valid_name_survives_printing_and_parsing(schema: str, name: str) -> None:
    quoted = ".".join("`" + part.replace("`", "``") + "`" for part in (schema, name))
    try:
        parsed = Name.parse(quoted)
    except InvalidValueError:
        assume(False)
    assert Name.parse(str(parsed)) == parsed
    assert Name.parse(parsed.qualified) == parsed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1abc", "Write `1abc`, in a shell '`1abc`'."),
        ("raw.a b", "Write raw.`a b`, in a shell 'raw.`a b`'."),
        ("x" * 500, "Use at most 200."),
        ("a/b", "slashes, colons"),
        ("`" + "x" * 201 + "`", "more than 200 characters"),
        ("a.b.c", "Write name or schema.name"),
    ],
)
def test_what_is_no_name_says_how_it_becomes_one(text: str, said: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        Name.parse(text)
    assert said in str(caught.value.remedy)


def test_each_name_that_statements_of_volstream_give_a_column_beside_those_of_a_table_is_reserved() -> None:
    sources = [path.read_text() for path in Path(volstream.__file__).parent.rglob("*.py")]
    given = {name for source in sources for name in re.findall(r"\bAS (__[a-z_]+)\b", source)}
    assert given <= RESERVED_COLUMNS
    assert {"__row_id", "__row_version", "__change_type"} <= given
