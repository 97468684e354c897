"""Files with more bad rows than a job takes: compared with rows that are counted one by one, in plain Python."""

from __future__ import annotations

import json
import random
import re
from fractions import Fraction

import pytest

from tests.loading import Files
from volstream.base.definitions import LoadKeys
from volstream.base.definitions.job import load_keys
from volstream.errors import InvalidValueError
from volstream.functions.rejection import FileRejectedError


def text_of(rows: list[tuple[object, object]], form: str) -> str:
    if form == "csv":
        return "".join(f"{line}\n" for line in ["n,m", *(f"{n},{m}" for n, m in rows)])
    return "\n".join(json.dumps({"n": n, "m": m}) for n, m in rows)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("seed", range(60))
def test_a_file_fails_if_more_of_its_rows_than_the_limit_are_bad(files: Files, seed: int, form: str) -> None:
    chance = random.Random(seed)
    count = chance.choice([0, 1, 2, 20, 200, 12_000 if seed < 4 else 100])  # more than are read at once
    share = chance.choice([0, 0.01, 0.1, 0.5, 1])
    odd = share / 2
    rows: list[tuple[object, object]] = [
        ("x" if chance.random() < odd else number, "x" if chance.random() < odd else number) for number in range(count)
    ]
    bad = [at for at, row in enumerate(rows) if "x" in row]
    near = max(0, len(bad) + chance.choice([-1, 0, 1]))
    limit = chance.choice([str(near), "0%", "100%", "50%", f"{100 * len(bad) / max(1, count):.6f}%"])
    most = Fraction(limit[:-1]) * count / 100 if limit.endswith("%") else int(limit)
    content = text_of(rows, form)
    if len(bad) <= most:
        assert len(files.rows(f"x.{form}", content, "n BIGINT, m BIGINT", max_bad_rows=limit)) == count
        return
    with pytest.raises(FileRejectedError) as refused:
        files.rows(f"x.{form}", content, "n BIGINT, m BIGINT", max_bad_rows=limit)
    said = re.fullmatch(
        r"([0-9,]+) (or more|of ([0-9,]+)) rows have values that do not fit, more than (\S+) \(max_bad_rows\)\. "
        r"The first: row ([0-9,]+), (\{.*\})",
        str(refused.value),
    )
    assert said is not None, str(refused.value)
    found, _, of, given, first, values = (
        one and one.replace(",", "") if at != 5 else one for at, one in enumerate(said.groups())
    )
    assert (given, int(first or 0)) == (limit, bad[0] + 1)
    assert json.loads(values or "") == {name: "x" for name, value in zip("nm", rows[bad[0]], strict=True) if value == "x"}
    if of is None:
        assert most < int(found or 0) <= len(bad), "reported as soon as the limit is exceeded"
    else:
        assert (int(found or 0), int(of)) == (len(bad), count)


def test_values_that_new_columns_rescue_count_and_new_columns_come_first(files: Files) -> None:
    content = "n,m,o\n1,x,9\n2,3,9\n"
    with pytest.raises(FileRejectedError, match="columns that the table lacks"):
        files.rows("x.csv", content, "n BIGINT, m BIGINT", max_bad_rows="0%")
    with pytest.raises(FileRejectedError, match="2 of 2 rows"):
        files.rows("x.csv", content, "n BIGINT, m BIGINT", max_bad_rows="50%", new_columns="rescue")


@pytest.mark.parametrize("given", ["101%", "-1", "5 percent", "1.5", "%", "0.0000001%", True, "\u0665"])
def test_a_limit_is_a_number_or_a_percentage(given: object) -> None:
    with pytest.raises(InvalidValueError, match="max_bad_rows"):
        load_keys({"max_bad_rows": given}, "schema")["max_bad_rows"].read(given)


@pytest.mark.parametrize(("given", "stored"), [(7, "7"), ("7", "7"), ("5%", "5%"), ("0.5 %", "0.5%"), ("100%", "100%")])
def test_a_limit_is_kept_as_it_is_written(given: object, stored: str) -> None:
    assert load_keys({}, "schema")["max_bad_rows"].read(given) == stored
    assert LoadKeys().max_bad_rows is None
