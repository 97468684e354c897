"""Plans: what is compared, in which order it is done, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from volstream.api.pipelines.definitions import ADDED, CODE, KEYS, Definition, Kind, PipelinePlan, Verb, defaults
from volstream.api.pipelines.plan import check, compare, done_line, plan_lines, plan_summary, plan_values
from volstream.base.model.names import Name
from volstream.errors import InvalidStateError, InvalidValueError


def one(kind: Kind, name: str, /, **values: Any) -> Definition:
    read = {key: KEYS[kind][key].read(value) if key in KEYS[kind] else value for key, value in values.items()}
    return Definition(kind, Name.parse(name), {**defaults(kind), **read})


def volume(name: str = "v", **values: Any) -> Definition:
    return one(Kind.VOLUME, name, **{"location": "file:///in", "queue_type": "local", **values})


def job(name: str = "j", /, **values: Any) -> Definition:
    return one(Kind.JOB, name, **{"function": "/f.py:f", "volume": "v", "into": "t", CODE: "1", **values})


def statement(name: str = "j", text: str = "INSERT INTO t SELECT * FROM s", **values: Any) -> Definition:
    return one(Kind.JOB, name, **{"statement": text, CODE: None, **values})


def table(columns: str, name: str = "t", /, **values: Any) -> Definition:
    return one(Kind.TABLE, name, **{"columns": columns, ADDED: (), **values})


def steps(plan: PipelinePlan) -> list[str]:
    return [f"{action.verb} {action.definition.title}" for action in plan.actions]


def changed(wanted: Definition, existing: Definition) -> list[tuple[str, Any, Any, str]]:
    (action,) = compare([wanted], [existing]).actions
    return [(change.key, change.before, change.after, change.blocked) for change in action.changes]


def test_what_is_as_wanted_is_kept() -> None:
    assert steps(compare([volume(), job()], [job(), volume()])) == ["keep volume v", "keep job j"]


def test_objects_come_after_those_that_they_need() -> None:
    wanted = [
        one(Kind.DYNAMIC_TABLE, "sums", query="SELECT twice(n) FROM results"),
        one(Kind.STREAM, "a_results", table="results"),
        statement("audit", "INSERT INTO log SELECT n FROM a_results JOIN DIRECTORY(VOLUME v)"),
        table("n INT", "results"),
        table("n INT", "log"),
        job("fill", volume="v", into="results"),
        volume("v", connection="c"),
        one(Kind.CONNECTION, "c", type="local"),
        one(Kind.FUNCTION, "twice", function="/f.py:g", returns="INT"),
    ]
    found = steps(compare(wanted, []))
    for first, second in [
        ("connection c", "volume v"),
        ("volume v", "job fill"),
        ("table results", "job fill"),
        ("table results", "stream a_results"),
        ("stream a_results", "job audit"),
        ("volume v", "job audit"),
        ("table log", "job audit"),
        ("table results", "dynamic table sums"),
        ("function twice", "dynamic table sums"),
    ]:
        assert found.index(f"create {first}") < found.index(f"create {second}"), (first, second)


def test_a_table_that_only_a_job_makes_comes_after_the_job() -> None:
    wanted = [one(Kind.STREAM, "a", table="t"), job()]
    assert steps(compare(wanted, [])) == ["create job j", "create stream a"]


def test_objects_that_need_each_other_are_an_error_that_names_them() -> None:
    circle = [one(Kind.STREAM, "s", table="t"), job(volume=None, stream="s")]
    with pytest.raises(InvalidValueError, match=r"depend on each other: .*stream s.*job j.*\[tables\.NAME\]"):
        compare(circle, [])


def test_nothing_is_dropped_unless_asked_and_never_what_has_rows() -> None:
    existing = [volume(), job(), table("n INT"), one(Kind.SOURCE, "e", kind="events"), volume("other")]
    assert steps(compare([volume("other")], existing)) == ["keep volume other"]
    pruned = steps(compare([volume("other")], existing, prune=True))
    assert pruned == ["drop job j", "keep volume other", "drop volume v"]


def test_what_a_file_leaves_out_goes_back_to_its_default() -> None:
    assert changed(volume(), volume(comment="c", recursive=False)) == [("recursive", False, True, ""), ("comment", "c", None, "")]


def test_where_a_stream_starts_matters_only_when_it_is_made() -> None:
    wanted = one(Kind.STREAM, "s", volume="v", show_initial_rows=True, at_version=3)
    assert changed(wanted, one(Kind.STREAM, "s", volume="v")) == []


def test_a_stream_without_identity_has_that_of_its_table() -> None:
    existing = one(Kind.STREAM, "s", table="t", identity=("Id",))
    assert changed(one(Kind.STREAM, "s", table="t"), existing) == []
    assert changed(one(Kind.STREAM, "s", table="t", identity=("id",)), existing) == []
    assert [key for key, *_ in changed(one(Kind.STREAM, "s", table="t", identity=("n",)), existing)] == ["identity"]


def test_other_code_of_a_function_is_a_change_of_the_function() -> None:
    plan = compare([job(**{CODE: "2"})], [job()])
    assert list(plan_lines(plan)) == ["~ job j", "    function: its code changed"]
    assert "volstream replay j" in done_line(plan.actions[0])


def test_what_cannot_be_altered_is_an_error_that_says_what_to_do() -> None:
    wanted = [volume(location="file:///elsewhere", patterns=("*.txt",)), job(write="append", retries=5)]
    plan = compare(wanted, [volume(), job()])
    with pytest.raises(InvalidStateError) as caught:
        check(plan)
    said = str(caught.value)
    assert "volume v: location cannot be altered: it is 'file:///in', not 'file:///elsewhere'." in said
    assert "job j: write cannot be altered" in said
    assert "volstream drop volume v" in said
    assert "Nothing was changed." in said
    assert "patterns" not in said


def test_a_job_stays_what_it_is() -> None:
    (change,) = changed(statement(), job())
    assert change[3] == "it is a job with function"


def test_a_statement_may_change_and_its_streams_are_those_that_it_reads() -> None:
    wanted = statement(text="INSERT INTO t SELECT n FROM s", stream="s")
    assert [(key, blocked) for key, _, _, blocked in changed(wanted, statement())] == [("statement", "")]


def load(**values: Any) -> Definition:
    options = {"format": None, "header": True, "delimiter": None, "encoding": "utf-8", "schema": None, "new_columns": "add"}
    return job(**{"function": None, "load": {**options, **values}, CODE: None})


@pytest.mark.parametrize(
    ("wanted", "existing", "same"),
    [
        ({}, {"schema": "n INT"}, True),
        ({"schema": "n INT"}, {"schema": "n INT, came STRING"}, True),
        ({"schema": "n INT", "new_columns": "fail"}, {"schema": "n INT, came STRING", "new_columns": "fail"}, False),
        ({"schema": "n BIGINT"}, {"schema": "n INT"}, False),
        ({"delimiter": ";"}, {}, False),
    ],
)
def test_columns_that_files_bring_are_no_difference(wanted: Any, existing: Any, same: bool) -> None:
    assert (changed(load(**wanted), load(**existing)) == []) is same


@pytest.mark.parametrize(
    ("wanted", "existing", "added", "blocked"),
    [
        ("id INT, name VARCHAR(9)", "id INT, name STRING", (), None),
        ("ID int", "id INT", (), None),
        ("id INT", "id INT, label STRING", ("label",), None),
        ("id INT, more STRING", "id INT", (), ""),
        ("id INT", "id INT, label STRING", (), "the table has a column label, which the file lacks"),
        ("id BIGINT", "id INT", (), "the column id is INT, not BIGINT"),
        ("id INT, n INT NOT NULL", "id INT", (), "the new column n cannot be NOT NULL"),
    ],
)
def test_tables_get_columns_and_lose_none(wanted: str, existing: str, added: Any, blocked: str | None) -> None:
    found = changed(table(wanted), table(existing, **{ADDED: added}))
    if blocked is None:
        assert found == []
    else:
        ((key, _, _, reason),) = found
        assert key == "columns"
        assert reason.startswith(blocked)
        assert bool(reason) == bool(blocked)


def test_properties_that_a_file_does_not_name_are_left_alone() -> None:
    existing = table("n INT", properties={"delta.x": "1", "change_tracking": "true"})
    assert changed(table("n INT", properties={"delta.x": "1"}), existing) == []
    assert changed(table("n INT", properties={"change_tracking": "false"}), table("n INT")) == []
    assert [key for key, *_ in changed(table("n INT", properties={"delta.x": "2"}), existing)] == ["properties"]


def test_a_plan_is_told_in_lines_with_signs() -> None:
    wanted = [volume(comment="new"), job("k", arguments={"a": "1"})]
    lines = list(plan_lines(compare(wanted, [volume(), job()], prune=True)))
    assert lines[:1] == ["- job j"]
    assert lines[1:3] == ["~ volume v", "    comment: none -> new"]
    assert "+ job k" in lines
    assert "    arguments = {a = 1}" in lines
    assert not any(CODE in line for line in lines)
    assert plan_summary(compare(wanted, [volume(), job()])) == "1 to create, 1 to alter."
    assert plan_summary(compare([volume()], [volume()])) == "Nothing to change."


def test_actions_are_plain_values_for_programs() -> None:
    (values,) = plan_values(compare([volume(comment="c")], [volume()]))
    assert values == {
        "action": "alter",
        "kind": "volume",
        "name": "v",
        "file": None,
        "changes": [{"key": "comment", "before": None, "after": "c", "blocked": None}],
    }


def test_the_number_of_each_verb_is_known() -> None:
    plan = compare([volume()], [])
    assert [plan.count(verb) for verb in Verb] == [1, 0, 0, 0]
