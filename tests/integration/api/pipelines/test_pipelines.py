"""Files of a pipeline applied to homes, without an engine."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import objects
from tests.commands import Shell
from volstream.api.pipelines.apply import apply, check_plan, plan_of
from volstream.api.pipelines.export import existing, to_toml
from volstream.api.session import Session
from volstream.base import config
from volstream.base.model.names import Name
from volstream.errors import VolstreamError
from volstream.functions.schema import PROVENANCE, PROVENANCE_OF_SETS
from volstream.tables.delta import direct, places

#: One of each kind that needs no engine.
ALL = """
[connections.lake]
type = "s3"
region = "eu-west-1"

[connections.here]
type = "local"

[volumes.notes]
location = "files"
connection = "here"
patterns = ["*.txt"]

[streams.changes]
volume = "notes"
comment = "what changes"

[jobs."silver.count"]
volume = "notes"
function = "f.py:one"
returns = "n INT"
into = "silver.counts"
every = "1m"

[jobs.loads]
volume = "notes"
into = "rows"
load = { format = "csv", schema = "n INT" }

[functions.one]
function = "f.py:one"
returns = "STRING"

[sources.events]
kind = "events"
retention_policy = "30d"

[sources.items]
kind = "items"
primary_key = "id"

[sources.orders]
kind = "kafka"
brokers = ["broker:9092"]
properties."sasl.password" = "${env:NOT_SET_HERE}"

[streams.item_changes]
table = "items"
"""

TITLES = [
    *["connection here", "connection lake", "volume notes", "function one", "source events", "source items", "source orders"],
    *["stream changes", "stream item_changes", "job loads", "job silver.count"],
]


class Pipeline:
    """Commands on a home that does not exist yet, and a pipeline's file beside code and files."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell.beside("applied")
        self.file = shell.home.with_name("pipeline.toml")
        self.folder = self.file.parent

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def apply(self, *options: str) -> list[str]:
        """Says what was done, as ``created volume v``."""
        said = self.shell.ok("apply", str(self.file), "--format", "json", *options)
        return [f"{load['action']} {load['kind']} {load['name']}" for load in json.loads(said) if load["action"] != "keep"]

    def refused(self, *options: str) -> str:
        code, _, err = self.shell("apply", str(self.file), *options)
        assert code in (2, 3), err
        return err

    def export(self) -> str:
        return self.shell.ok("export")


@pytest.fixture
def pipeline(shell: Shell) -> Pipeline:
    return Pipeline(shell)


def test_every_kind_is_created_and_applying_again_changes_nothing(pipeline: Pipeline) -> None:
    pipeline.write(ALL)
    assert sorted(pipeline.apply()) == sorted(f"create {title}" for title in TITLES)
    assert pipeline.apply() == []
    assert pipeline.shell.ok("apply", str(pipeline.file)) == "Nothing to change: 11 objects as in the file.\n"
    job = json.loads(pipeline.shell.ok("describe", "job", "silver.count", "--format", "json"))
    assert job["function"] == f"{pipeline.folder}/f.py:one"


def test_an_export_applies_to_the_same_home_and_to_an_empty_one(pipeline: Pipeline) -> None:
    pipeline.write(ALL)
    pipeline.apply()
    exported = pipeline.export()
    pipeline.write(exported)
    assert pipeline.apply() == []
    pipeline.shell = pipeline.shell.beside("second")
    assert sorted(pipeline.apply()) == sorted(f"create {title}" for title in TITLES)
    assert pipeline.export() == exported


def test_secrets_are_neither_stored_nor_exported(pipeline: Pipeline) -> None:
    pipeline.write(ALL)
    pipeline.apply()
    source = json.loads(pipeline.shell.ok("describe", "source", "orders", "--format", "json"))
    assert source["options"]["properties"] == {"sasl.password": "${env:NOT_SET_HERE}"}
    assert 'properties."sasl.password" = "${env:NOT_SET_HERE}"' in pipeline.export()
    pipeline.write(ALL.replace("${env:NOT_SET_HERE}", "literal"))
    assert "source orders" in pipeline.refused()


def test_a_connection_may_be_dropped_with_the_last_use_of_it_and_a_job_renamed(pipeline: Pipeline) -> None:
    pipeline.write(
        '[connections.here]\ntype = "local"\n[volumes.v]\nlocation = "files"\nconnection = "here"\n[streams.s]\nvolume = "v"\n'
        '[jobs.a]\nstream = "s"\nfunction = "f.py:one"\nreturns = "n INT"\ninto = "t"\n'
    )
    pipeline.apply()
    pipeline.write(
        '[volumes.v]\nlocation = "files"\n[streams.s]\nvolume = "v"\n'
        '[jobs.b]\nstream = "s"\nfunction = "f.py:one"\nreturns = "n INT"\ninto = "t"\n'
    )
    done = pipeline.apply("--prune", "--yes")
    assert done == ["drop job a", "alter volume v", "create job b", "drop connection here"]


@pytest.mark.parametrize("kind", ["streams", "sources", "tables"])
def test_a_table_in_the_way_is_seen_before_anything_is_changed(pipeline: Pipeline, kind: str) -> None:
    pipeline.write('[sources.taken]\nkind = "events"\n')
    pipeline.apply()
    keys = {"streams": 'table = "taken"', "sources": 'kind = "items"\nprimary_key = "id"', "tables": 'columns = "n INT"'}
    pipeline.write(f'[connections.c]\ntype = "local"\n[{kind}.taken]\n{keys[kind]}\n')
    assert "taken" in pipeline.refused()
    assert "[connections.c]" not in pipeline.export()


def test_buckets_need_not_be_reachable_if_the_user_says_so(pipeline: Pipeline) -> None:
    pipeline.write('[volumes.v]\nlocation = "nowhere"\n')
    assert "does not exist" in pipeline.refused()
    assert pipeline.apply("--no-check") == ["create volume v"]


def test_a_condition_does_not_change_in_the_middle_of_a_plan(pipeline: Pipeline) -> None:
    text = (
        '[connections.c]\ntype = "local"\n[volumes.v]\nlocation = "files"\n[jobs.j]\nvolume = "v"\nfunction = "f.py:one"\n'
        'returns = "n INT"\ninto = "t"\n'
    )
    pipeline.write(text)
    pipeline.apply()
    with Session(config.load(pipeline.shell.home)) as session:
        job = session.jobs.get("j")
        catalog, stream = session.home.catalog, session.streams.get("j_stream")
        plan = objects.plan(job)
        catalog.consumptions.open((plan, [objects.batch(plan)], stream))
    pipeline.write('[connections.another]\ntype = "local"\n' + text + 'where = "size > 1"\n')
    assert "is in progress, or was interrupted" in pipeline.refused()
    assert "another" not in pipeline.export()


def test_an_export_into_a_folder_refers_to_code_there_and_overwrites_nothing(pipeline: Pipeline) -> None:
    pipeline.write(ALL)
    pipeline.apply()
    code, _, err = pipeline.shell("export", str(pipeline.folder))
    assert (code, "The file" in err, "--force" in err) == (3, True, True)
    assert "11 objects written to" in pipeline.shell.ok("export", str(pipeline.folder), "--force")
    assert 'function = "f.py:one"' in pipeline.file.read_text()
    assert pipeline.apply() == []
    pipeline.shell.ok("export", str(pipeline.folder / "new" / "all.toml"))
    assert (pipeline.folder / "new" / "all.toml").exists()
    code, _, err = pipeline.shell("export", "x" * 300)
    assert (code, "cannot be written: File name too long" in err) == (3, True)


def test_tables_that_exist_are_exported_as_sources_of_dbt(pipeline: Pipeline) -> None:
    pipeline.write(ALL)
    pipeline.apply()
    location = Path(places.table_location(str(pipeline.shell.home / "warehouse"), Name.parse("silver.counts")))
    columns = pa.schema([pa.field("n", pa.int32()), *PROVENANCE])
    write_deltalake(location, columns.empty_table())
    models = pipeline.folder / "models"
    assert pipeline.shell.ok("export", "--dbt", str(models)) == f"4 tables written to {models}/sources.yml.\n"
    text = (models / "sources.yml").read_text()
    assert pipeline.shell.ok("export", "--dbt") == text
    data, counts = (source["tables"] for source in yaml.safe_load(text)["sources"])
    assert [table["name"] for table in data] == ["events", "items", "orders"]
    assert counts == [
        {
            "name": "counts",
            "description": "Written by the job silver.count of volstream.",
            "config": {"meta": {"external_location": f"delta_scan('{location}')"}, "loaded_at_field": "_processed_at"},
            "columns": counts[0]["columns"],
        }
    ]
    assert counts[0]["columns"][0] == {"name": "n", "data_type": "INT"}
    assert all("description" in column for column in counts[0]["columns"][1:])
    code, _, err = pipeline.shell("export", "--dbt", str(models))
    assert (code, "--force" in err) == (3, True)


def test_values_are_altered_in_place(pipeline: Pipeline) -> None:
    pipeline.write(ALL)
    pipeline.apply()
    for before, after in [
        ('region = "eu-west-1"', 'region = "eu-west-2"'),
        ('patterns = ["*.txt"]', 'patterns = ["*.md"]\nrecursive = false'),
        ('connection = "here"\n', ""),
        ('comment = "what changes"', 'comment = "other"'),
        ('every = "1m"', 'cron = "* * * * *"\nretries = 1\ntimeout = "5s"\narguments.x = "1"'),
        ("f.py:one", "g.py:one"),
        ('load = { format = "csv", schema', 'load = { format = "json", schema'),
        ('retention_policy = "30d"', 'retention_policy = "1d"'),
    ]:
        pipeline.write(pipeline.file.read_text().replace(before, after))
    (pipeline.folder / "g.py").write_text("def one(file, x=None): ...\n")
    assert sorted(pipeline.apply()) == sorted(
        f"alter {title}"
        for title in (
            *["connection lake", "volume notes", "stream changes", "job silver.count", "job loads", "function one"],
            "source events",
        )
    )
    assert pipeline.apply() == []
    exported = pipeline.export()
    for said in ('region = "eu-west-2"', '"*.md"', "recursive = false", '"other"', 'cron = "* * * * *"', 'timeout = "5s"'):
        assert said in exported
    assert "connection =" not in exported
    assert 'load = { format = "json", schema = "n INT" }' in exported


def test_changed_code_is_accepted_and_a_replay_offered(pipeline: Pipeline) -> None:
    pipeline.write(
        '[volumes.v]\nlocation = "files"\n[jobs.j]\nvolume = "v"\nfunction = "f.py:one"\nreturns = "n INT"\ninto = "t"\n'
    )
    pipeline.apply()
    (pipeline.folder / "f.py").write_text("def one(file): return {'n': 1}\n")
    assert "function: its code changed" in pipeline.shell.ok("diff", str(pipeline.file))
    code, _, err = pipeline.shell("apply", str(pipeline.file))
    assert (code, "volstream replay j" in err) == (0, True)
    assert pipeline.apply() == []


def test_a_diff_changes_nothing_and_can_set_the_exit_code(pipeline: Pipeline) -> None:
    pipeline.write(ALL)
    code, out, _ = pipeline.shell("diff", str(pipeline.file), "--exit-code")
    assert code == 6
    assert "+ volume notes\n" in out
    assert "11 to create." in out
    assert not pipeline.shell.home.exists()
    assert pipeline.shell("diff", str(pipeline.file))[0] == 0
    pipeline.apply()
    assert pipeline.shell("diff", str(pipeline.file), "--exit-code")[:2] == (0, "Nothing to change.\n")


def test_a_dry_run_checks_everything_and_changes_nothing(pipeline: Pipeline) -> None:
    pipeline.write(ALL)
    assert "11 to create." in pipeline.shell.ok("apply", str(pipeline.file), "--dry-run")
    assert not pipeline.shell.home.exists()
    pipeline.write(ALL.replace('location = "files"', 'location = "nowhere"'))
    assert "does not exist" in pipeline.refused("--dry-run")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('location = "files"', 'location = "nowhere"', "pipeline.toml: volume notes: The location"),
        ('connection = "here"', 'connection = "lake"', "volume notes: The connection lake has the type s3"),
        ('connection = "here"', 'connection = "gone"', "volume notes: There is no connection gone"),
        (
            'location = "files"\nconnection = "here"\npatterns = ["*.txt"]',
            'location = "."',
            "The volume would contain volstream's home",
        ),
        ('type = "s3"', 'type = "ftp"', "connection lake: type: 'ftp' is not an allowed value."),
        ('every = "1m"', 'cron = "often"', "job silver.count: 'often'"),
        ('every = "1m"', "retries = -1", "job silver.count: retries cannot be -1."),
        ('every = "1m"', 'where = "colour = 1"', "job silver.count: The condition names a column 'colour'"),
        ('every = "1m"', 'arguments.language = "de"', "job silver.count: one has no argument 'language'."),
        ('every = "1m"', 'environment = "none.txt"', "none.txt for the environment"),
        ("f.py:one", "f.py:nine", "has no 'nine'"),
        ('table = "items"', 'table = "elsewhere"', "stream item_changes: There is no table elsewhere."),
        ('table = "items"', 'table = "rows"', "The table rows is created by the first run of job loads"),
        ('table = "items"', 'table = "items"\nidentity = ["x"]', "has no column 'x' to identify rows"),
        ("[streams.item_changes]", "[streams.count_stream]", ""),
        ("[streams.changes]", "[streams.loads_stream]", "loads_stream, which already exists"),
        ("[sources.orders]", "[tables.events]\ncolumns = 'n INT'\n[sources.orders]", "There is already a table or stream events"),
        ("[sources.events]", "[sources.changes]", "There is already a table changes"),
        (
            "[sources.orders]",
            "[tables.x]\ncolumns = 'n INT'\nproperties = {'delta.inCommitTimestampEnablementVersion' = '3'}\n[sources.orders]",
            "table x: properties: delta.inCommitTimestampEnablementVersion is maintained by Delta or volstream.",
        ),
    ],
)
def test_mistakes_are_found_before_anything_is_changed(pipeline: Pipeline, before: str, after: str, said: str) -> None:
    assert before in ALL
    pipeline.write(ALL.replace(before, after))
    code, _, err = pipeline.shell("apply", str(pipeline.file))
    if not said:
        assert code == 0, err
        return
    assert code == 3, err
    assert said in err
    assert not (pipeline.shell.home / "catalog.db").exists()
    assert pipeline.shell("list", "volumes")[0] == 3


def test_what_cannot_be_altered_is_refused_with_a_way_out(pipeline: Pipeline) -> None:
    pipeline.write(ALL)
    pipeline.apply()
    (pipeline.folder / "elsewhere").mkdir()
    changed = ALL.replace('location = "files"', 'location = "elsewhere"').replace('primary_key = "id"', 'primary_key = "key"')
    pipeline.write(changed.replace('every = "1m"', 'every = "2m"'))
    said = pipeline.refused()
    assert "pipeline.toml: volume notes: location cannot be altered" in said
    assert "source items: primary_key cannot be altered" in said
    assert "volstream drop volume notes" in said
    assert 'every = "1m"' in pipeline.export()


def test_pruning_drops_what_the_file_lacks_after_a_yes(pipeline: Pipeline) -> None:
    pipeline.write(ALL)
    pipeline.apply()
    pipeline.write('[connections.here]\ntype = "local"\n[volumes.notes]\nlocation = "files"\nconnection = "here"\n')
    assert pipeline.apply() == ["alter volume notes"]
    said = pipeline.refused("--prune")
    assert "would be dropped: " in said
    assert "Confirm with --yes" in said
    assert sorted(pipeline.apply("--prune", "--yes")) == [
        *["drop connection lake", "drop function one", "drop job loads", "drop job silver.count", "drop stream changes"],
        "drop stream item_changes",
    ]
    assert "[sources.items]" in pipeline.export()


def test_what_is_in_use_is_not_pruned_and_nothing_else_is_done(pipeline: Pipeline) -> None:
    """A job of the home reads the volume that the file lacks, through a stream that the file has."""
    pipeline.write('[volumes.v]\nlocation = "files"\n[streams.s]\nvolume = "v"\n[connections.c]\ntype = "local"\n')
    pipeline.apply()
    pipeline.shell.job("j", "one")
    pipeline.write('[streams.s]\nvolume = "v"\n[jobs.j]\nvolume = "v"\nfunction = "f.py:one"\nreturns = "n INT"\ninto = "t"\n')
    assert "The volume v is used by job j." in pipeline.refused("--prune", "--yes")
    assert "[connections.c]" in pipeline.export()


def test_a_failure_in_the_middle_says_what_was_done_and_can_be_repeated(pipeline: Pipeline) -> None:
    """The table's folder cannot be made, which a rehearsal elsewhere does not see."""
    pipeline.write(ALL)
    tables = pipeline.shell.home / "warehouse" / "tables" / "public"
    tables.mkdir(parents=True)
    (tables / "items").write_text("in the way")
    code, _, err = pipeline.shell("apply", str(pipeline.file))
    assert code != 0
    assert "pipeline.toml: source items: " in err
    assert "4 changes of 11 were created and remain." in err
    (tables / "items").unlink()
    assert len(pipeline.apply()) == 7
    assert pipeline.apply() == []


def test_data_is_not_exported_and_that_is_said(pipeline: Pipeline, tmp_path: Path) -> None:
    with Session(config.load(pipeline.shell.home)) as session:
        session.source.create_table("fixed", "id", [{"id": "1"}], immutable=True)
    code, out, err = pipeline.shell("export")
    assert (code, "[sources.fixed]" in out) == (0, False)
    assert "Left out, because they consist of data only: fixed." in err


@pytest.mark.parametrize("columns", ["n INT", "n INT, _file_path STRING", "n INT, _group_key STRING"])
def test_columns_that_volstream_adds_may_be_named_or_not(pipeline: Pipeline, columns: str) -> None:
    table = f'\n[tables."silver.counts"]\ncolumns = "{columns}"\n'
    pipeline.write(ALL)
    pipeline.apply()
    location = places.table_location(str(pipeline.shell.home / "warehouse"), Name.parse("silver.counts"))
    rows = PROVENANCE_OF_SETS if "_group_key" in columns else PROVENANCE
    write_deltalake(location, pa.schema([pa.field("n", pa.int32()), *rows]).empty_table())
    pipeline.write(ALL + table)
    assert pipeline.apply() == []
    pipeline.write(ALL + table.replace("n INT", "n BIGINT"))
    assert "the column n is INT, not BIGINT" in pipeline.refused()


def test_what_a_table_s_history_set_is_not_exported(pipeline: Pipeline) -> None:
    assert pipeline.shell("init")[0] == 0
    tables = pipeline.shell.home / "warehouse/tables/public"
    tables.mkdir(parents=True)
    kept = {"delta.checkpointInterval": "20"}
    history = {"delta.inCommitTimestampEnablementVersion": "2", "delta.inCommitTimestampEnablementTimestamp": "1700000000000"}
    assert direct.create(f"{tables}/t", pa.schema([("n", pa.int32())]), kept | history)
    code, out, err = pipeline.shell("export")
    assert code == 0, err
    assert "delta.checkpointInterval" in out
    assert "Enablement" not in out


def test_a_session_applies_files_too(pipeline: Pipeline) -> None:
    pipeline.write('[profile.a]\nwhere = "files"\n' + ALL.replace('"files"', '"${var:where}"'))
    with Session(config.load(pipeline.shell.home)) as session:
        assert len(session.apply(pipeline.file, profile="a").changes) == 11
        assert session.apply(pipeline.file, profile="a").changes == []


def test_the_graph_leads_from_volumes_to_tables(pipeline: Pipeline) -> None:
    pipeline.write(ALL)
    pipeline.apply()
    found = json.loads(pipeline.shell.ok("graph", "--format", "json"))
    edges = {(one["source"], one["target"]) for one in found["edges"]}
    assert {
        ("volume:notes", "stream:silver.count_stream"),
        ("stream:silver.count_stream", "job:silver.count"),
        ("job:silver.count", "table:silver.counts"),
        ("source:items", "stream:item_changes"),
    } <= edges
    assert {one["id"] for one in found["nodes"]} >= {"function:one", "source:events", "volume:notes"}
    assert "└─ stream item_changes" in pipeline.shell.ok("graph")
    assert pipeline.shell.ok("graph", "--format", "dot").startswith("digraph")
    assert pipeline.shell.ok("graph", "--format", "mermaid").startswith("flowchart")


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=15)
#: Names of jobs; those of their tables have no blanks.
NAME = st.sampled_from(["a", "b", "silver.c", "`d e`"])


@st.composite
def files(draw: st.DrawFn) -> str:
    """A file that can be applied: some objects, each with some of its keys."""

    def keys(**values: st.SearchStrategy[Any]) -> str:
        chosen = draw(st.fixed_dictionaries({}, optional=values))
        return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in chosen.items())

    comment = TEXT.map(lambda text: text.replace("\x7f", ""))
    text = "[volumes.v]\nlocation = 'files'\n" + keys(
        comment=comment, recursive=st.booleans(), patterns=st.just(["*.txt"]), ignores=st.just([]), max_removals=st.just("9%"),
        queue_type=st.sampled_from(["poll", "none", "local"]), virtual_cluster=st.just("GPU"),
    )  # fmt: skip
    for name in draw(st.lists(NAME, unique=True)):
        trigger = draw(st.sampled_from(["", "on_change = true\n", "every = '90s'\n", "cron = '5 * * * *'\n"]))
        table = name.strip("`").replace(" ", "_")
        text += f"[jobs.'{name}']\nvolume = 'v'\nfunction = 'f.py:f'\nreturns = 'n INT'\ninto = '{table}'\n{trigger}" + keys(
            comment=comment, where=st.just("size > 1"), retries=st.integers(0, 9), timeout=st.just("1h"), isolate=st.booleans(),
            write=st.sampled_from(["upsert", "append"]), max_bytes=st.integers(1, 1 << 40), max_files=st.integers(1, 99),
        )  # fmt: skip
    for number, name in enumerate(draw(st.lists(st.sampled_from(["x", "silver.y", "`y z`"]), unique=True))):
        mode = st.sampled_from(["standard", "append-only"])
        text += f"[streams.'{name}']\nvolume = 'v'\n" + keys(comment=comment, mode=mode)
        text += f"[connections.c{number}]\ntype = 's3'\n" + keys(comment=comment, region=st.just("eu-west-1"))
    return text


@given(text=files())
@settings(max_examples=settings().max_examples // 8)
def test_any_pipeline_survives_apply_and_export(text: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "files").mkdir()
        (folder / "f.py").write_text("def f(file): ...\n")
        (folder / "pipeline.toml").write_text(text, encoding="utf-8")
        with Session(config.load(folder / "home")) as session, Session(config.load(folder / "other")) as other:
            apply(session, folder / "pipeline.toml")
            assert plan_of(session, folder / "pipeline.toml").changes == []
            exported = folder / "exported.toml"
            exported.write_text(to_toml(existing(session.home, None)), encoding="utf-8")
            assert plan_of(session, exported, prune=True).changes == []
            apply(other, exported)
            assert existing(other.home, None) == existing(session.home, None)


def test_a_rehearsal_leaves_the_home_as_it_was(pipeline: Pipeline) -> None:
    pipeline.write(ALL)
    pipeline.apply()
    before = pipeline.export()
    pipeline.write("")
    with Session(config.load(pipeline.shell.home)) as session:
        plan = plan_of(session, pipeline.file, prune=True)
        check_plan(session, plan)
        assert plan.count(plan.actions[0].verb) == 8
    assert pipeline.export() == before


#: A column of each type, and one that only Spark can create.
TYPED = (
    "a STRING, b TIMESTAMP, c DECIMAL(10,2), d BIGINT, e ARRAY<STRUCT<f: DATE>>, g VARCHAR(9), h TIMESTAMP_NTZ, i MAP<STRING,INT>"
)


@pytest.mark.parametrize(
    ("schema", "refused"),
    [
        (TYPED.replace("VARCHAR(9)", "STRING").replace(", h TIMESTAMP_NTZ", ""), None),
        ("b TIMESTAMP, c DECIMAL(10,2)", None),
        ("b STRING", "Column b of table t is TIMESTAMP, but it is declared as STRING"),
    ],
)
def test_a_rehearsal_knows_the_types_of_the_tables_that_it_creates(pipeline: Pipeline, schema: str, refused: str | None) -> None:
    (pipeline.folder / "files").mkdir(exist_ok=True)
    load = f"load = {{ format = 'json', schema = '{schema}' }}"
    pipeline.write(
        f"[volumes.v]\nlocation = 'files'\n[tables.t]\ncolumns = '{TYPED}'\n[jobs.j]\nvolume = 'v'\ninto = 't'\n{load}\n"
    )
    with Session(config.load(pipeline.shell.home)) as session:
        plan = plan_of(session, pipeline.file)
        if refused is None:
            check_plan(session, plan)
            return
        with pytest.raises(VolstreamError, match=refused):
            check_plan(session, plan)


def test_an_error_of_the_home_names_the_object(pipeline: Pipeline) -> None:
    pipeline.write('[jobs.j]\nstatement = "SELECT 1"\n')
    with (
        Session(config.load(pipeline.shell.home)) as session,
        pytest.raises(VolstreamError, match="job j: The statement of job j writes nothing"),
    ):
        session.apply(pipeline.file)
