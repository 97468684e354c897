"""What is exported reads back as what it was."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volstream.api.pipelines.definitions import BOOKKEEPING, KEYS, Definition, Kind, defaults
from volstream.api.pipelines.export import to_toml
from volstream.api.pipelines.plan import compare
from volstream.api.pipelines.read import check_literal, complete, is_secret, read
from volstream.base.model.names import Name
from volstream.errors import InvalidValueError


def plain(text: str) -> bool:
    """True for text that a file may have."""
    try:
        check_literal(text)
    except InvalidValueError:
        return False
    return True


TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(plain)
TRICKY = st.sampled_from(["${var:x}", "$${env:Y}", "$$${var:z}", "a\n'''\n", "'", '"', "\\", "a\nb", "\r\n", "\x7f", "\u202e"])
SAID = TEXT | TRICKY
PROPERTY = SAID.filter(lambda key: not key.startswith(BOOKKEEPING) and key not in ("change_tracking", "data_retention_days"))
NAME = st.builds(Name, st.sampled_from(["public", "bronze", "a b"]), st.from_regex(r"[a-z_][a-z0-9_ ]{0,9}x", fullmatch=True))
NAMES = NAME.map(str)
DURATION = st.sampled_from(["500ms", "90s", "1m", "36h", "30d"])
RETENTION = st.sampled_from(["90s", "1m", "36h", "30d"])  # in whole seconds
TRIGGER = st.one_of(
    st.just({}), st.just({"on_change": True}), st.builds(lambda one: {"every": one}, DURATION), st.just({"cron": "* * * * *"})
)
COLUMNS = st.sampled_from(["n INT", "n BIGINT, `a b` STRING", "id DECIMAL(10,2), tags ARRAY<STRING>"])


def some(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these keys."""
    return st.fixed_dictionaries({}, optional=strategies)


def texts(keys: st.SearchStrategy[str]) -> st.SearchStrategy[Mapping[str, str]]:
    return st.dictionaries(keys.filter(lambda key: not is_secret(key)), SAID, max_size=3)


LOAD = some(
    format=st.sampled_from(["csv", "json"]),
    header=st.just(False),
    delimiter=st.just("\t"),
    schema=COLUMNS,
    new_columns=st.sampled_from(["rescue", "fail"]),
)
FILES = some(
    where=SAID, write=st.just("append"), on_move=st.just("rekey"), retries=st.integers(0, 9), timeout=DURATION,
    isolate=st.just(True), max_files=st.integers(1, 9), max_bytes=st.sampled_from(["1GiB", "1000"]), comment=SAID,
)  # fmt: skip

#: The keys of each kind, as a file could have them.
GIVEN: Mapping[Kind, st.SearchStrategy[dict[str, Any]]] = {
    Kind.CONNECTION: some(region=SAID, endpoint=st.just("https://x:1"), role_arn=SAID, comment=SAID).map(
        lambda one: {"type": "s3", **one}
    ),
    Kind.VOLUME: st.tuples(
        st.sampled_from([{"location": "file:///a%20b"}, {"location": "s3://bkt/x", "queue_type": "sqs", "queue_name": "q"}]),
        some(connection=NAMES, recursive=st.just(False), patterns=st.lists(SAID).map(tuple), comment=SAID,
             ignores=st.lists(SAID).map(tuple), max_removals=st.just("50%"), virtual_cluster=SAID),
    ).map(lambda pair: pair[0] | pair[1]),
    Kind.FUNCTION: some(of_items=st.just(True), comment=SAID).map(
        lambda one: {"function": "/x/f.py:g", "returns": "ARRAY<STRING>", **one}
    ),
    Kind.SOURCE: st.one_of(
        some(retention_policy=RETENTION, comment=SAID).map(lambda one: {"kind": "events", **one}),
        some(comment=SAID).map(lambda one: {"kind": "items", "primary_key": "id", **one}),
        some(properties=texts(st.sampled_from(["client.id", "a b"])), comment=SAID).map(
            lambda one: {"kind": "kafka", "brokers": ("b:1",), "topic": "T", "format": "bytes", **one}
        ),
    ),
    Kind.TABLE: some(properties=texts(PROPERTY), partitioned_by=st.just(("n",))).map(lambda one: {"columns": "n INT", **one}),
    Kind.STREAM: st.tuples(
        st.one_of(st.builds(lambda one: {"volume": one}, NAMES), st.builds(lambda one: {"table": one}, NAMES)),
        some(mode=st.just("append-only"), identity=st.just(("a", "b")), comment=SAID, show_initial_rows=st.just(True)),
    ).map(lambda pair: pair[0] | pair[1]),
    Kind.JOB: st.one_of(
        st.tuples(LOAD, NAMES, NAMES, FILES).map(
            lambda four: {"load": four[0], "volume": four[1], "into": four[2], **four[3]}
        ),
        st.tuples(FILES, TRIGGER, texts(SAID), NAMES, some(returns=COLUMNS, environment=st.just("/x/r.txt"))).map(
            lambda all_: {"function": "f.py:f", "stream": "s", "into": all_[3], "arguments": all_[2], **all_[0], **all_[1], **all_[4]}
        ),
        TRIGGER.map(lambda one: {"statement": "INSERT INTO t\nSELECT 'it''s' FROM s", **one}),
    ),
    Kind.DYNAMIC_TABLE: st.tuples(TRIGGER, some(comment=SAID)).map(
        lambda pair: {"query": "SELECT '${var:x}' AS a,\n  n FROM other", **pair[0], **pair[1]}
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pipeline")
    (made / "f.py").write_text("def f(file): ...\n")
    return made


@st.composite
def definitions(draw: st.DrawFn, folder: Path) -> list[Definition]:
    found: dict[tuple[Kind, Name], Definition] = {}
    for _ in range(draw(st.integers(0, 4))):
        kind, name = draw(st.sampled_from(list(Kind))), draw(NAME)
        given_ = draw(GIVEN[kind])
        read_ = {key: KEYS[kind][key].read(value) for key, value in given_.items()}
        values = complete(kind, str(name), {**defaults(kind), **read_}, given_.keys(), folder)
        found[kind, name] = Definition(kind, name, values, folder, "pipeline.toml")
    return list(found.values())


@given(data=st.data())
@settings(max_examples=settings().max_examples // 2)
def test_every_definition_reads_back_from_its_export(folder: Path, data: st.DataObject) -> None:
    wanted = data.draw(definitions(folder))
    (folder / "pipeline.toml").write_text(to_toml(wanted), encoding="utf-8", newline="")
    found = read(folder / "pipeline.toml")
    assert {one.identity: one for one in found} == {one.identity: one for one in wanted}
    assert compare(found, wanted, prune=True).changes == []


def test_secrets_of_topics_are_exported_as_references() -> None:
    kept = {"sasl.password": "${env:PASSWORD}", "ssl.key.location": "/k", "client.id": "${env:not}"}
    values = {**defaults(Kind.SOURCE), "kind": "kafka", "brokers": ("b:1",), "topic": "t", "format": "json", "properties": kept}
    text = to_toml([Definition(Kind.SOURCE, Name.parse("k"), values)])
    assert tomllib.loads(text)["sources"]["k"]["properties"] == {**kept, "client.id": "$${env:not}"}


def test_code_below_the_files_folder_is_relative_to_it(folder: Path) -> None:
    values = {**defaults(Kind.FUNCTION), "function": f"{folder}/f.py:f", "returns": "INT"}
    one = Definition(Kind.FUNCTION, Name.parse("f"), values)
    assert 'function = "f.py:f"' in to_toml([one], folder=folder)
    assert f'function = "{folder}/f.py:f"' in to_toml([one], folder=folder / "other")


def test_what_is_left_out_is_said() -> None:
    assert "consist of data only: a, b.\n" in to_toml([], ["a", "b"])
