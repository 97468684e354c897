"""The history of definitions, against a model: a list of what each object was defined as. No engine is needed."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from volstream.api.session import Session
from volstream.base.definitions import FileJob
from volstream.cli.main import run
from volstream.errors import InvalidStateError, NotFoundError

#: By kind: options that can be altered, with some of their values; the first is the default.
OPTIONS: dict[str, dict[str, list[Any]]] = {
    "volume": {"patterns": [(), ("*.jpg",), ("*.txt", "a/**")], "recursive": [True, False], "comment": [None, "x", "it's"]},
    "job": {
        "retries": [3, 0, 9],
        "on_change": [False, True],
        "timeout": [None, 60.0, 1.5],
        "expect": [(), ("n > 0", "n < 9")],
        "max_bytes": [None, 1 << 20],
        "function": ["f.py:f", "f.py:g"],
        "arguments": [{}, {"a": "1"}],
    },
}


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    (tmp_path / "in").mkdir()
    (tmp_path / "f.py").write_text(
        "def f(file, a: int = 0):\n    return {'n': 1}\n\ndef g(file, a: int = 0):\n    return {'n': 2}\n"
    )
    monkeypatch.chdir(tmp_path)
    session = Session(tmp_path / "home", create=True)
    session.volumes.create("inbox", "in")
    return session


def create(session: Session, kind: str, options: dict[str, Any]) -> None:
    if kind == "volume":
        session.volumes.create("o", "in", or_replace=True, **options)
    else:
        function = options.pop("function", "f.py:f")
        session.jobs.create("o", function, "t", volume="inbox", returns="n INT", or_replace=True, **options)


def defined(session: Session, kind: str) -> dict[str, Any]:
    found = session.by_kind[kind].find("o")
    values = {option: getattr(found, option) for option in OPTIONS[kind]}
    if isinstance(found, FileJob):
        values["function"] = Path(found.function).name
    return values


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("seed", range(4))
def test_histories_are_those_of_a_model_and_every_definition_can_be_put_back(session: Session, kind: str, seed: int) -> None:
    chance = random.Random(seed)
    collection = session.by_kind[kind]
    default = {option: values[0] for option, values in OPTIONS[kind].items()}
    model: list[tuple[str, dict[str, Any] | None]] = []  # oldest first
    for _ in range(30):
        present = model[-1][1] if model else None
        some = {option: chance.choice(values) for option, values in OPTIONS[kind].items() if chance.random() < 0.4}
        match chance.choice(["create", "alter", "alter", "revert", "drop"]):
            case "create":
                create(session, kind, dict(some))
                model.append(("created" if present is None else "replaced", {**default, **some}))
            case "alter" if present is not None:
                collection.alter("o", **some)
                if present != (after := {**present, **some}):
                    model.append(("changed", after))
            case "revert" if present is not None:
                at = chance.randrange(len(model))
                if model[at][1] is None or at == len(model) - 1:
                    continue
                collection.revert("o", list(reversed(collection.history("o")))[at].id)
                if present != model[at][1]:
                    model.append(("changed", model[at][1]))
            case "drop" if present is not None:
                collection.drop("o")
                model.append(("dropped", None))
            case _:
                continue
        history = list(reversed(collection.history("o")))
        assert [change.what for change in history] == [what for what, _ in model]
        if model[-1][1] is not None:
            assert defined(session, kind) == model[-1][1]
        for change, (what, kept), (_, before) in zip(history, model, [("", None), *model], strict=False):
            was: dict[str, Any] = default if before is None else before
            expected = set() if kept is None else {option for option in kept if (kept[option] or None) != (was[option] or None)}
            assert {*change.changes} & {*OPTIONS[kind]} >= expected, (what, change)
            if what in ("changed", "replaced"):
                assert {*change.changes} == expected


def test_a_function_without_a_file_is_put_back_with_its_code(session: Session) -> None:
    def counted(factor: int) -> Any:
        return lambda file: {"n": factor}

    session.jobs.create("o", counted(1), "t", volume="inbox", returns="n INT")
    first = session.jobs.get("o")
    session.jobs.alter("o", function=counted(2))
    session.jobs.revert("o")
    again = session.jobs.get("o")
    assert isinstance(first, FileJob)
    assert isinstance(again, FileJob)
    assert (again.pickled, again.fingerprint) == (first.pickled, first.fingerprint)


def test_what_cannot_be_altered_is_not_put_back(session: Session) -> None:
    session.jobs.create("o", "f.py:f", "t", volume="inbox", returns="n INT")
    with pytest.raises(NotFoundError, match="no earlier definition"):
        session.jobs.revert("o")
    session.jobs.create("o", "f.py:f", "t", volume="inbox", returns="n INT", write="append", or_replace=True)
    with pytest.raises(InvalidStateError, match="write append cannot become upsert"):
        session.jobs.revert("o")


def test_definitions_that_were_valid_within_the_history_are_kept(session: Session) -> None:
    session.volumes.create("gone", "in")
    for comment in ("a", "b", "c"):
        session.volumes.alter("inbox", comment=comment)
        session.volumes.alter("gone", comment=comment)
    session.volumes.drop("gone")
    history = session.home.catalog.history
    third = session.volumes.history("inbox")[1].saved_on
    history.forget(third + timedelta(microseconds=1), kept=1)
    assert [change.text for change in session.volumes.history("inbox")] == [
        "comment b -> c",
        f"comment b, location {session.volumes.find('inbox').location}, queue_type local",
    ]
    history.forget(datetime.now(UTC) + timedelta(days=1), kept=1)
    assert len(session.volumes.history("inbox")) == 1
    assert session.volumes.history("gone") == []


def test_an_object_that_is_older_than_the_history_has_its_first_definition_when_it_changes(session: Session) -> None:
    from volstream.catalog.tables import definition_versions

    session.home.catalog.database.write(definition_versions.delete())
    session.volumes.alter("inbox", comment="new")
    assert [change.what for change in session.volumes.history("inbox")] == ["changed", "created"]
    session.volumes.revert("inbox")
    assert session.volumes.find("inbox").comment is None


def test_commands_say_what_they_replace_and_what_differs(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*command: str) -> str:
        assert run([*command, "--home", str(tmp_path / "home")]) == 0
        return capsys.readouterr().out

    job = ("create-job", "o", "--volume", "inbox", "--function", "f.py:f", "--into", "t", "--returns", "n INT")
    assert "replaces" not in said(*job, "--on-change", "--retries", "5")
    assert "The job o exists, unchanged: retries is 5, not 4." in said(*job, "--if-not-exists", "--retries", "4")
    assert "It replaces another: on_change true -> false, retries 5 -> 3. To put that back: volstream revert job o." in said(
        *job, "--or-replace"
    )
    assert "now on_change false -> true, retries 3 -> 5" in said("revert", "job", "o")
    said("alter-job", "o", "--timeout", "5s", "--where", "size > 0", "--retries", "7", "--expect", "n > 0")
    said("alter-job", "o", "--unset", "timeout", "--unset", "where", "--unset", "retries", "--unset", "expect")
    for wrong, hint in (("timeuot", "Did you mean 'timeout'?"), ("every", "--manual")):
        assert run(["alter-job", "o", "--unset", wrong, "--home", str(tmp_path / "home")]) == 2
        assert hint in capsys.readouterr().err
    job_o = session.jobs.get("o")
    assert isinstance(job_o, FileJob)
    assert (job_o.timeout, job_o.where, job_o.retries, job_o.expect) == (None, None, 3, ())
    said("alter-volume", "inbox", "--expect-every", "1h")
    said("alter-volume", "inbox", "--unset", "expect-every")
    assert session.volumes.get("inbox").expect_every is None
    said("alter-job", "o", "--function", "f.py:g")
    assert "f.py:f. Rows of other code stay; to replace them: volstream replay o --stale." in said("revert", "job", "o")
    assert "The volume inbox exists, unchanged." in said("create-volume", "inbox", "in", "--if-not-exists")
    replaced = said("sql", "CREATE OR REPLACE VOLUME inbox LOCATION 'in' COMMENT = 'x'")
    assert "Volume inbox is replaced: comment none -> x." in replaced
    assert "comment none -> x" in said("describe", "volume", "inbox", "--history")


#: What a command names besides options: two of each, and what the history says when the second replaces the first.
ENDS = {
    "volume's location": (("create-volume", "o"), ("in",), ("other",), "location"),
    "stream's volume": (("create-stream", "o"), ("--volume", "inbox"), ("--volume", "outbox"), "volume inbox -> outbox"),
    "job's volume": (("create-job", "o"), ("--volume", "inbox"), ("--volume", "outbox"), "volume inbox -> outbox"),
    "job's table": (("create-job", "o", "--volume", "inbox"), ("--into", "t"), ("--into", "t2"), "into t -> t2"),
    "load's volume": (("load", "--into", "t", "--name", "o"), ("inbox",), ("outbox",), "volume inbox -> outbox"),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_an_object_reads_and_writes_is_a_part_of_what_it_is(
    session: Session, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, first, second, said = ENDS[end]
    Path("other").mkdir()
    session.volumes.create("outbox", "other")
    rest = {
        "create-job": ("--function", "f.py:f", "--returns", "n INT", *(() if "table" in end else ("--into", "t"))),
        "load": ("--schema", "n INT"),
    }.get(words[0], ())
    kind = end.partition("'")[0].replace("load", "job")

    def make(*options: str) -> str:
        assert run(["--home", str(session.home.settings.home), *words, *options, *rest]) == 0
        return capsys.readouterr().out

    make(*first)
    assert f"The {kind} o exists, unchanged." in make(*first, "--if-not-exists")
    kept = make(*second, "--if-not-exists")
    assert "exists, unchanged: " in kept
    assert kept.rstrip().endswith(f", not {second[-1]}.")
    assert "It replaces an identical one." in make(*first, "--or-replace")
    replaced = make(*second, "--or-replace")
    assert said in replaced
    assert "create it again as it was" in replaced
    assert "volstream revert" not in replaced
    assert said in session.by_kind[kind].history("o")[0].text
    with pytest.raises(InvalidStateError, match="cannot become"):
        session.by_kind[kind].revert("o")


def test_a_replaced_volume_names_the_streams_that_are_stale(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    session.streams.create("s", volume="inbox")
    Path("other").mkdir()
    assert run(["--home", str(session.home.settings.home), "create-volume", "inbox", "other", "--or-replace"]) == 0
    assert "Stale now: stream s" in capsys.readouterr().out


def test_other_code_of_a_function_of_the_program_is_a_change(session: Session) -> None:
    def made(number: int) -> Any:
        return lambda file: {"n": number}

    session.jobs.create("o", made(1), "t", volume="inbox", returns="n INT")
    session.jobs.alter("o", function=made(2))
    assert session.jobs.history("o")[0].text == "function lambda (earlier code) -> lambda (other code)"
    session.jobs.revert("o")
    assert "other code" in session.jobs.history("o")[0].text


def test_a_reverted_load_has_its_arguments_as_they_were(session: Session) -> None:
    Path("in/a.csv").write_text("id,qty\n1,2\n")
    session.volumes.refresh("inbox")
    session.jobs.load("o", "inbox", "t", null_values=["NA"])
    before = session.jobs.get("o")
    assert isinstance(before, FileJob)
    assert "inferred" in before.arguments
    session.jobs.load("o", "inbox", "t", schema="id BIGINT, qty BIGINT, x STRING", delimiter=";", or_replace=True)
    after = session.jobs.revert("o")
    assert isinstance(after, FileJob)
    assert (after.arguments, after.returns) == (before.arguments, before.returns)
