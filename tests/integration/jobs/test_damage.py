"""A result table that a disk or a hand has damaged: each command ends right, or says in one sentence what to do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.integration.conftest import Place, session_on
from volstream.base import config
from volstream.base.definitions import QueueType, Write
from volstream.errors import DependencyError, InvalidStateError, StreamStaleError, VolstreamError
from volstream.spark.session import SparkGateway

#: A row per character. Each call is noted.
CODE = """
def f(file):
    with open({notes!r}, "a") as notes:
        notes.write(file.relative_path + " ")
    return [{{"n": number, "t": sign}} for number, sign in enumerate(file.read_text())]
"""

#: What becomes of a file.
DAMAGES: Mapping[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: path.write_bytes(bytes(range(1, 256)) * (path.stat().st_size // 255 + 1)),
    "scratched": lambda path: path.write_bytes(_scratched(path.read_bytes())),
}

#: Files of a table, by the pattern of their names, and how many the tests' table has.
FILES = {
    r"\d+\.json": 4,
    r"\d+\.checkpoint\.parquet": 1,
    r"_last_checkpoint": 1,
    r"deletion_vector_.*\.bin": 2,
    r"part-.*\.parquet": 3,
}

#: The content of the volume when the table was filled, and what has changed since.
FILLED = {"0": "zero", "1": "one", "2": "two", "3": "three", "4": "x", "5": "former", "none": ""}
NOW = {**FILLED, "2": "changed"}

Rows = list[tuple[object, ...]]


def _scratched(content: bytes) -> bytes:
    return content[:40] + b"\xff" * 40 + content[80:]


class Damaged:
    """A copy of a home whose job ``j`` has filled a table in three runs, which are to be damaged. Each has its place, so that
    nothing of it is known to Spark."""

    def __init__(self, template: Path, folder: Path, gateway: SparkGateway) -> None:
        shutil.copytree(template / "home", folder / "home")
        self.notes = template / "notes"
        self.notes.unlink(missing_ok=True)
        self.session = session_on(gateway, _settings(folder))
        self.jobs = self.session.jobs
        self.location = Path(self.session.home.warehouse) / "tables/public/t"

    def files(self, pattern: str) -> list[Path]:
        return sorted(path for path in self.location.rglob("*") if re.fullmatch(pattern, path.name))

    def live(self) -> Path:
        """The data file with the rows of 0, 1 and 4, and no deleted ones."""
        paths = [Path(uri) for uri in DeltaTable(str(self.location)).file_uris()]
        return next(path for path in paths if {*pq.read_table(path)["_file_path"].to_pylist()} == {"0", "1", "4"})

    def calls(self) -> list[str]:
        called = self.notes.read_text().split() if self.notes.exists() else []
        self.notes.unlink(missing_ok=True)
        return sorted(called)

    def content(self) -> Rows:
        rows = self.session.sql(f"SELECT _file_path, n, t FROM delta.`{self.location}`").collect()
        return sorted(tuple(row) for row in rows)


def _rows(files: Mapping[str, str]) -> Rows:
    return sorted((path, number, sign) for path, text in files.items() for number, sign in enumerate(text))


def _settings(folder: Path) -> config.Settings:
    return config.load(folder / "home", settle_seconds=0.05, retry_first_seconds=3600.0, batch_seconds=3600.0)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, gateway: SparkGateway) -> Path:
    root = tmp_path_factory.mktemp("template")
    (root / "files").mkdir()
    with session_on(gateway, _settings(root)) as session:
        session.volumes.create("v", str(root / "files"), queue_type=QueueType.NONE)
        place = Place(session, root / "files", gateway)
        place.job(CODE.format(notes=str(root / "notes")), returns="n INT, t STRING", retries=0)
        for texts in (dict.fromkeys(FILLED, "former"), {**FILLED, "2": "former", "3": "former"}, FILLED):
            for path, text in texts.items():
                if not (root / "files" / path).exists() or (root / "files" / path).read_text() != text:
                    place.put(path, text)
            place.refresh()
            place.run()
            if texts["0"] != "former" and texts["2"] == "former":
                DeltaTable(f"{session.home.warehouse}/tables/public/t").create_checkpoint()
        place.put("2", NOW["2"])
        place.refresh()
    return root


@pytest.fixture
def damaged(template: Path, tmp_path: Path, gateway: SparkGateway) -> Iterator[Damaged]:
    made = Damaged(template, tmp_path, gateway)
    with made.session:
        yield made


@pytest.mark.long
def test_rows_of_a_lost_file_are_made_again(damaged: Damaged) -> None:
    damaged.live().unlink()
    found = damaged.jobs.verify("j")
    assert not found.is_right
    assert "1 data file of the table cannot be read (part-" in found.text
    with pytest.raises(DependencyError, match="The table t is damaged: 1 data file") as raised:
        damaged.jobs.run("j")
    assert raised.value.remedy == "Repair it: volstream verify j --fix"
    fixed = damaged.jobs.verify("j", fix=True)
    assert fixed.is_right
    assert {*damaged.calls()} == {"0", "1", "4", "2"}, "2 is the run's"
    assert damaged.content() == _rows(NOW)
    assert damaged.jobs.verify("j").is_right
    assert damaged.calls() == []


@pytest.mark.long
def test_rows_of_a_file_that_are_spread_over_data_files_are_all_made_again(damaged: Damaged) -> None:
    damaged.jobs.run("j")
    spark = damaged.session.spark
    rows = spark.read.format("delta").load(str(damaged.location)).repartition(2, "n")
    rows.write.format("delta").mode("overwrite").option("dataChange", "false").save(str(damaged.location))
    Path(next(iter(DeltaTable(str(damaged.location)).file_uris()))).write_bytes(b"?")
    assert damaged.jobs.heal("j").is_right
    assert damaged.content() == _rows(NOW)
    assert damaged.jobs.verify("j").is_right


@pytest.mark.long
def test_a_log_that_cannot_be_read_is_made_again_when_asked(damaged: Damaged) -> None:
    last = damaged.files(r"\d+\.json")[-1]
    last.write_bytes(last.read_bytes()[:100])
    for command in (damaged.jobs.run, damaged.jobs.replay):
        with pytest.raises(DependencyError, match="the log of the table cannot be read") as raised:
            command("j")
        assert raised.value.remedy == "Repair it: volstream verify j --fix"
    assert not damaged.jobs.verify("j").is_right
    assert damaged.calls() == []
    assert damaged.jobs.heal("j").is_right
    assert damaged.calls() == ["0", "1", "3", "4", "5"], "the ledger still knows the one without rows; 2 is the next run's"
    damaged.jobs.run("j")
    assert damaged.content() == _rows(NOW)


@pytest.mark.long
def test_a_damaged_checkpoint_costs_no_call(damaged: Damaged) -> None:
    [checkpoint] = damaged.files(r"\d+\.checkpoint\.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:50])
    assert not damaged.jobs.verify("j").is_right
    assert damaged.jobs.verify("j", fix=True).is_right
    assert damaged.calls() == []
    assert damaged.content() == _rows(FILLED)


@pytest.mark.long
def test_a_damaged_ledger_costs_calls_for_files_without_rows(damaged: Damaged) -> None:
    [ledger] = (Path(damaged.session.home.warehouse) / "_ledgers").glob("*/part-*.parquet")
    ledger.unlink()
    assert "of the ledger cannot be read" in damaged.jobs.verify("j").text
    assert damaged.jobs.verify("j", fix=True).is_right
    assert damaged.calls() == ["none"]


def test_a_table_with_other_rows_is_not_made_again(place: Place) -> None:
    place.put("a", "text")
    place.job("def f(file):\n    return {'n': 1}\n", write="append")
    place.refresh()
    place.run()
    log = Path(place.session.home.warehouse) / "tables/public/t/_delta_log"
    (log / f"{1:020d}.json").write_bytes(b"{")
    with pytest.raises(InvalidStateError, match="rows that its job cannot produce again") as raised:
        place.session.jobs.heal("j")
    assert "Restore the log from a backup" in raised.value.remedy
    assert log.exists()


@pytest.mark.long
@pytest.mark.parametrize("part", ["files/part-*", "files/_delta_log/*.json"])
def test_a_damaged_directory_says_what_to_do(damaged: Damaged, part: str) -> None:
    [directory] = (Path(damaged.session.home.warehouse) / "directories").iterdir()
    for file in directory.glob(part):
        file.write_bytes(b"?")
    refresh, run, heal = (lambda: damaged.session.volumes.refresh("v")), damaged.jobs.run, damaged.jobs.heal
    errors = [_error(command) for command in (refresh, lambda: run("j"), lambda: heal("j"))]
    assert errors[0] is not None
    for error in filter(None, errors):
        assert str(directory) in error.message
        assert "\n" not in error.message
        assert "volstream refresh VOLUME, and volstream heal JOB" in error.remedy
    shutil.rmtree(directory)
    damaged.session.volumes.refresh("v")
    assert damaged.jobs.heal("j").is_right
    assert damaged.content() == _rows(NOW)


@pytest.mark.long
def test_a_stream_is_told_that_changes_are_lost(place: Place) -> None:
    place.put("a", "text")
    place.job("def f(file):\n    return {'n': 1}\n")
    place.refresh()
    place.run()
    place.forget_other_tables()
    place.session.sql("ALTER TABLE t SET PROPERTIES ('change_tracking' = 'true')")
    place.session.sql("CREATE TABLE STREAM s ON TABLE t")
    place.put("b", "text")
    place.refresh()
    place.run()
    for file in (Path(place.session.home.warehouse) / "tables/public/t").glob("part-*.parquet"):
        file.write_bytes(b"?")
    assert place.session.jobs.heal("j").is_right
    with pytest.raises(StreamStaleError, match="or damaged, such as part-"):
        place.stream()


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("pattern", "number"), [(name, at) for name, many in FILES.items() for at in range(many)])
def test_every_damage(template: Path, tmp_path: Path, gateway: SparkGateway, pattern: str, number: int, damage: str) -> None:
    for command in ("run", "replay", "fix", "heal"):
        made = Damaged(template, tmp_path / command, gateway)
        with made.session:
            assert len(made.files(pattern)) == FILES[pattern]
            DAMAGES[damage](made.files(pattern)[number])
            _check(made, command)


def _check(made: Damaged, command: str) -> None:
    if command in ("run", "replay"):
        error = _error(lambda: getattr(made.jobs, command)("j"))
        if error is None and made.jobs.verify("j").is_right:
            assert [row for row in made.content() if row[0] != "2"] == _rows({**FILLED, "2": ""})
        if error is not None:
            assert re.fullmatch(r"The table t is damaged: [^\n]+ cannot be read \([^\n]+\)\.", error.message), error
            assert error.remedy == "Repair it: volstream verify j --fix"
        return
    if command == "fix" and made.jobs.verify("j").is_right:
        assert made.content() == _rows(FILLED)
    assert made.jobs.verify("j", fix=True).is_right if command == "fix" else made.jobs.heal("j").is_right
    made.jobs.run("j")
    assert made.content() == _rows(NOW)


def _error(command: Callable[[], object]) -> VolstreamError | None:
    try:
        command()
    except VolstreamError as error:
        return error
    return None


@pytest.mark.parametrize("write", [*Write])
def test_a_run_whose_table_is_lost_makes_no_part_of_it_and_names_what_makes_all_of_it(place: Place, write: Write) -> None:
    jobs = place.session.jobs
    for number in range(3):
        place.put(f"{number}.csv", f"n\n{number}\n")
    jobs.load("j", "v", "t", schema="n INT", write=write)
    place.run()
    shutil.rmtree(place.location)
    for changed in (False, True):
        if changed:
            place.put("1.csv", "n\n1000\n")
            place.refresh()
        for run in (place.run, lambda: jobs.replay("j", where="relative_path = '0.csv'")):
            with pytest.raises(InvalidStateError, match=r"The table t, .* is missing: .*volstream heal j"):
                run()
        assert not Path(place.location).exists()
    jobs.heal("j")
    place.run()
    assert place.table() == [("0.csv", 0), ("1.csv", 1000), ("2.csv", 2)]


def test_a_table_is_made_again_by_a_run_whose_stream_begins_again(place: Place) -> None:
    place.put("a.csv", "n\n1\n")
    place.session.jobs.load("j", "v", "t", schema="n INT")
    place.run()
    shutil.rmtree(place.location)
    place.session.streams.reset("j_stream", to_version=0)
    place.run()
    assert place.table() == [("a.csv", 1)]
    shutil.rmtree(place.location)
    place.session.jobs.replay("j")
    assert place.table() == [("a.csv", 1)]


@pytest.mark.parametrize("fix", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("lost", ["table", "file"])
def test_the_table_of_a_landing_zone_whose_rows_no_run_makes_again_is_not_called_right(
    place: Place, lost: str, fix: bool
) -> None:
    place.put("a.txt", "a")
    place.refresh()
    place.job("def f(file): return {'n': file.size}", write=Write.APPEND, after_load="archive:.done")
    place.run()
    assert not (place.folder / "a.txt").exists()
    if lost == "table":
        shutil.rmtree(place.location)
    else:
        [file] = Path(place.location).glob("*.parquet")
        file.unlink()
    if lost == "table" or fix:
        with pytest.raises(InvalidStateError, match=r"left the volume|is missing"):
            place.session.jobs.verify("j", fix=fix)
    else:
        assert not place.session.jobs.verify("j").is_right
    if lost == "file":
        assert len(DeltaTable(place.location).file_uris()) == 1, "nothing was taken out of the table"
