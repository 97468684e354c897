"""Functions make files: in another volume there are exactly those that committed rows name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Place
from tests.interrupts import meanwhile
from volstream.base.definitions import QueueType
from volstream.catalog.consumptions import Consumptions
from volstream.errors import EngineLostError, InvalidStateError, InvalidValueError, ObjectInUseError
from volstream.functions.output import STAGING
from volstream.jobs.batches import outputs
from volstream.jobs.proof import verify
from volstream.jobs.proof.verify import Problem

#: Writes a file's text in capitals below ``up/``, to the path that the first line names or else to its own.
UPPER = """
import volstream

def f(file):
    text = file.read_text()
    if text == 'none':
        return {'n': 0, 'made': None}
    if text == 'fail':
        raise ValueError('no good')
    paths = text.split('->')[1].split() if '->' in text else [file.relative_path]
    return [{'n': len(text), 'made': volstream.OutputFile('up/' + path, data=text.upper().encode())} for path in paths]
"""


class Target:
    """The place, with the volume ``out`` that gets outputs."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place = place
        self.folder = folder

    def create(self, function: str = UPPER, **options: Any) -> None:
        self.place.job(function, **{"returns": "n INT, made FILE", "outputs_to": "out", **options})

    def run(self) -> None:
        self.place.refresh()
        self.place.run()

    def give_up(self) -> None:
        """Runs the job until its new outputs have their paths, and loses the engine there."""
        with meanwhile("return", "volstream.jobs.batches.outputs.JobOutputs.publish", die), pytest.raises(EngineLostError):
            self.place.run()

    @property
    def files(self) -> dict[str, str]:
        """The contents of the volume, except of what attempts staged."""
        return {path: text for path, text in self.everything.items() if not path.startswith(STAGING)}

    @property
    def everything(self) -> dict[str, str]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_text() for path in found}

    @property
    def named(self) -> dict[str, tuple[str, str]]:
        """What rows name: the source, and a digest of the file's state, by path."""
        rows = self.place.rows(f"SELECT _file_path, made.* FROM {self.place.at} WHERE made IS NOT NULL")
        return {str(row["relative_path"]): (str(row["_file_path"]), str(row["etag"])) for row in rows}

    def check(self) -> None:
        """Checks that there is exactly what rows name, in the state that they name."""
        store = outputs.output_store(
            self.place.session.volumes.get("out"), self.place.session.home.catalog, self.place.session.home.settings
        )
        heads = {path: store.head(path) for path in self.named}
        assert self.everything.keys() == self.named.keys()
        assert {path: head and head.etag for path, head in heads.items()} == {
            path: etag for path, (_, etag) in self.named.items()
        }


@pytest.fixture
def target(place: Place, tmp_path: Path) -> Target:
    folder = tmp_path / "out"
    folder.mkdir()
    place.session.volumes.create("out", str(folder), queue_type=QueueType.NONE)
    return Target(place, folder)


@pytest.mark.long
def test_the_files_of_a_function_are_written_before_the_rows_that_name_them(target: Target) -> None:
    target.place.put("a.txt", "one")
    target.place.put("b/c.txt", "two")
    target.create(UPPER.replace("'up/' + ", ""), outputs_prefix="up")
    target.run()
    assert target.files == {"up/a.txt": "ONE", "up/b/c.txt": "TWO"}
    rows = target.place.rows(f"SELECT made FROM {target.place.at} ORDER BY _file_path")
    made: Any = rows[0]["made"]
    assert (made["volume"], made["relative_path"], made["size"], made["content_type"]) == ("out", "up/a.txt", 3, "text/plain")
    target.check()


def test_outputs_follow_their_sources_as_these_change_and_go(target: Target) -> None:
    for name in "abcd":
        target.place.put(name, name)
    target.create()
    target.run()
    target.place.put("a", "changed")
    target.place.put("b", "->elsewhere")
    target.place.put("c", "none")
    target.place.delete("d")
    target.run()
    assert target.files == {"up/a": "CHANGED", "up/elsewhere": "->ELSEWHERE"}
    target.check()


@pytest.mark.long
def test_a_failed_file_keeps_its_output(target: Target) -> None:
    target.place.put("a", "good")
    target.create()
    target.run()
    target.place.put("a", "fail")
    target.run()
    assert target.files == {"up/a": "GOOD"}
    target.check()


@pytest.mark.long
def test_a_replay_replaces_outputs(target: Target) -> None:
    target.place.put("a", "one")
    target.create()
    target.run()
    code = target.place.folder.parent / "code" / "job.py"
    code.write_text(UPPER.replace("upper()", "upper()[::-1]"))
    target.place.session.jobs.replay("j")
    assert target.files == {"up/a": "ENO"}
    target.check()


@pytest.mark.long
@pytest.mark.parametrize("on_move", [pytest.param("rekey", marks=pytest.mark.long), "rerun"])
def test_outputs_of_a_moved_file_are_those_of_its_rows(target: Target, on_move: str) -> None:
    target.place.put("a", "same")
    target.create(on_move=on_move)
    target.run()
    (target.place.folder / "a").rename(target.place.folder / "b")
    target.run()
    assert target.files == ({"up/a": "SAME"} if on_move == "rekey" else {"up/b": "SAME"})
    assert [source for source, _ in target.named.values()] == ["b"]
    target.check()
    target.place.delete("b")
    target.run()
    assert target.files == {}


def failures(target: Target) -> dict[str, str]:
    return {failure.path: failure.message for failure in target.place.session.jobs.failures("j")}


def test_one_path_for_two_files_of_a_batch_fails_the_second_and_names_both(target: Target) -> None:
    target.place.put("a", "->x")
    target.place.put("b", "->x y")
    target.place.put("c", "fine")
    target.create()
    target.run()
    assert failures(target) == {
        "b": "The output path 'up/x' of 'b' is already used by the file 'a'; give each file's outputs their own paths."
    }
    assert target.files == {"up/x": "->X", "up/c": "FINE"}
    target.check()


@pytest.mark.long
def test_the_path_of_another_files_committed_row_is_not_given_away(target: Target) -> None:
    target.place.put("b", "->x")
    target.create()
    target.run()
    target.place.put("a", "->x")
    target.run()
    assert "is already used by the file 'b'" in failures(target)["a"]
    assert target.files == {"up/x": "->X"}
    target.place.put("b", "->y")
    target.place.put("a", "->x z")
    target.run()
    assert target.files == {"up/x": "->X Z", "up/y": "->Y", "up/z": "->X Z"}
    target.check()


@pytest.mark.long
def test_a_path_goes_from_one_file_to_another_in_one_batch(target: Target) -> None:
    target.place.put("a", "->x")
    target.place.put("b", "->y")
    target.create()
    target.run()
    target.place.put("a", "->y 2")
    target.place.put("b", "->x 3")
    target.run()
    assert target.files == {"up/y": "->Y 2", "up/2": "->Y 2", "up/x": "->X 3", "up/3": "->X 3"}
    target.check()


@pytest.mark.long
def test_a_file_and_a_folder_can_exchange_their_name(target: Target) -> None:
    target.place.put("a", "->x/1")
    target.create()
    target.run()
    target.place.put("a", "->y")
    target.run()
    target.place.put("b", "->x")
    target.run()
    assert failures(target) == {}
    assert target.files == {"up/x": "->X", "up/y": "->Y"}
    target.check()


def test_what_volstream_did_not_write_is_never_replaced_or_removed(target: Target) -> None:
    (target.folder / "up").mkdir()
    (target.folder / "up" / "a").write_text("mine")
    target.place.put("a", "one")
    target.place.put("b", "two")
    target.create()
    target.run()
    assert failures(target) == {"a": "The output 'up/a' already exists in the volume out, but volstream did not write it there."}
    (target.folder / "up" / "b").unlink()
    (target.folder / "up" / "b").write_text("mine, too")
    target.place.delete("b")
    target.run()
    assert target.files == {"up/a": "mine", "up/b": "mine, too"}


def test_a_path_that_is_not_allowed_is_the_functions_failure(target: Target) -> None:
    refused = {
        "/etc/x": "'/etc/x' is absolute",
        "../x": "has an empty part, '.' or '..'",
        "x//x": "has an empty part",
        "x/": "has an empty part",
        "a\nb": "has control characters or line breaks",
        "a" * 256: "is too long",
    }
    for number, path in enumerate(refused):
        target.place.put(str(number), path)
    function = "import volstream\n\ndef f(file):\n    return {'n': 1, 'made': volstream.OutputFile(file.read_text(), b'')}\n"
    target.create(function, outputs_prefix="up")
    target.run()
    said = failures(target)
    assert len(said) == len(refused)
    for number, message in enumerate(refused.values()):
        assert message in said[str(number)]
    assert target.everything == {}


@pytest.mark.long
@pytest.mark.parametrize("how", ["async", *(pytest.param(how, marks=pytest.mark.long) for how in ("isolate", "group", "path"))])
def test_every_way_of_calling_a_function_writes_its_files(target: Target, how: str) -> None:
    made = "{'n': 1, 'made': volstream.OutputFile(file.name, data=file.read_bytes())}"
    bodies = {
        "isolate": f"def f(file):\n    return {made}\n",
        "async": f"async def f(file):\n    return {made}\n",
        "group": f"@volstream.function(batch_size=2)\ndef f(files):\n    return [{made} for file in files]\n",
        "path": "def f(file):\n    with file.open() as data:\n"
        "        return {'n': 1, 'made': volstream.OutputFile(file.name, data=file.local_path())}\n",
    }
    for name in "abc":
        target.place.put(name, name)
    target.create(f"import volstream\n\n{bodies[how]}", isolate=how == "isolate")
    target.run()
    assert failures(target) == {}
    assert target.files == {"a": "a", "b": "b", "c": "c"}
    target.check()


def test_columns_with_files_are_inferred_and_annotated(target: Target) -> None:
    target.place.put("a", "x")
    target.place.refresh()
    target.create("import volstream\n\ndef f(file):\n    return {'made': volstream.OutputFile('x', b'1')}\n", returns=None)
    target.run()
    assert target.files == {"x": "1"}


JOINED = """
import volstream

def f(files):
    text = '+'.join(file.read_text() for file in files)
    return {'n': len(files), 'made': volstream.OutputFile(f'up/{files.key}.txt', data=text.encode())}
"""


@pytest.mark.long
def test_outputs_of_sets_are_those_of_their_rows(target: Target) -> None:
    for path in ("a/1", "a/2", "b/1"):
        target.place.put(path, path)
    target.place.refresh()
    target.create(JOINED, group_by="folder")
    target.run()
    assert target.everything == {"up/a.txt": "a/1+a/2", "up/b.txt": "b/1"}
    target.place.put("a/3", "new")
    target.place.delete("a/1")
    target.place.delete("b/1")
    target.run()
    assert target.everything == {"up/a.txt": "a/2+new"}


def die(*_: object) -> None:
    raise EngineLostError("The Spark engine was lost.")


@pytest.mark.long
def test_an_attempt_that_is_given_up_leaves_what_rows_name_and_the_next_run_removes_the_rest(target: Target) -> None:
    target.place.put("a", "one")
    target.create()
    target.run()
    target.place.put("a", "two")
    target.place.put("b", "new")
    target.place.refresh()
    target.give_up()
    assert target.files == {"up/a": "ONE", "up/b": "NEW"}
    target.place.put("a", "fail")
    target.place.delete("b")
    target.run()
    assert target.files == {"up/a": "ONE"}
    target.check()


def test_a_daemons_sweep_finishes_what_killed_runs_left(target: Target) -> None:
    target.place.put("a", "one")
    target.place.put("b", "two")
    target.create()
    target.run()
    target.place.put("a", "three")
    target.place.put("b", "->new")
    target.place.refresh()
    target.give_up()
    assert target.files == {"up/a": "ONE", "up/b": "TWO", "up/new": "->NEW"}
    home = target.place.session.home
    outputs.sweep(home.catalog, home.settings)
    assert target.files == {"up/a": "ONE", "up/b": "TWO"}
    target.check()


def test_a_daemons_sweep_keeps_what_a_commit_still_needs_that_the_catalog_has_not_seen(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.place.put("a", "one")
    target.create()
    target.run()
    target.place.put("a", "changed")
    target.place.refresh()
    with monkeypatch.context() as patch:  # a kill between the table's commit and the catalog's
        patch.setattr(Consumptions, "commit", lambda *_: die())
        patch.setattr(Consumptions, "abort", lambda *_: die())
        with pytest.raises(EngineLostError):
            target.place.run()
    for path in (target.folder / STAGING).rglob("*"):
        os.utime(path, (0, 0))  # a weekend later
    home = target.place.session.home
    outputs.sweep(home.catalog, home.settings)
    target.place.run()
    assert target.files == {"up/a": "CHANGED"}


@pytest.mark.long
def test_a_daemons_sweep_removes_what_workers_of_killed_runs_wrote_once_it_is_old(target: Target) -> None:
    target.place.put("a", "one")
    target.create()
    target.run()
    home = target.place.session.home
    staged = target.folder / STAGING / home.catalog.jobs.list()[0].id / "batch" / "attempt" / "1"
    staged.parent.mkdir(parents=True)
    staged.write_text("half")
    outputs.sweep(home.catalog, home.settings)
    assert staged.exists(), "an attempt that began lately may still be going on"
    os.utime(staged, (0, 0))
    outputs.sweep(home.catalog, home.settings)
    target.check()


@pytest.mark.long
def test_the_target_is_a_volume_whose_directory_hears_of_outputs_and_a_job_goes_on_with_them(target: Target) -> None:
    session = target.place.session
    target.place.put("scan", "text of a scan")
    target.create()
    target.run()
    assert session.home.catalog.refreshes.is_asked(session.volumes.get("out").id, "up/scan")
    session.volumes.create("chunks", str(_folder(target, "chunks")), queue_type=QueueType.NONE)
    code = target.place.folder.parent / "code" / "chunk.py"
    code.write_text(
        "import volstream\n\ndef f(file):\n    for at, word in enumerate(file.read_text().split()):\n"
        "        yield {'chunk': volstream.OutputFile(f'{file.name}/{at}.txt', data=word.encode())}\n"
    )
    session.jobs.create("k", f"{code}:f", "chunked", volume="out", returns="chunk FILE", outputs_to="chunks")
    session.volumes.refresh("out")
    session.jobs.run("k")
    chunks = target.folder.parent / "chunks"
    assert sorted(path.read_text() for path in (chunks / "scan").iterdir()) == ["A", "OF", "SCAN", "TEXT"]
    target.place.put("scan", "short")
    target.run()
    session.volumes.refresh("out")
    session.jobs.run("k")
    assert [path.read_text() for path in (chunks / "scan").iterdir()] == ["SHORT"]
    target.place.delete("scan")
    target.run()
    session.volumes.refresh("out", accept_removals=True)
    session.jobs.run("k")
    assert list(chunks.rglob("*.txt")) == []


def _folder(target: Target, name: str) -> Path:
    folder = target.folder.parent / name
    folder.mkdir()
    return folder


@pytest.mark.long
def test_a_dropped_job_leaves_its_outputs_or_takes_them_along(target: Target) -> None:
    session = target.place.session
    target.place.put("a", "one")
    target.place.put("b", "two")
    target.create()
    target.run()
    with pytest.raises(ObjectInUseError, match="is used by job j"):
        session.volumes.drop("out")
    with pytest.raises(ObjectInUseError, match="lose track of the outputs of the job j"):
        session.volumes.create("out", str(target.folder), queue_type=QueueType.NONE, or_replace=True)
    session.jobs.drop("j")
    assert target.files == {"up/a": "ONE", "up/b": "TWO"}
    # Another job that keeps the table has them.
    target.place.put("a", "three")
    target.place.delete("b")
    target.place.refresh()
    target.create()
    target.run()
    assert target.files == {"up/a": "THREE"}
    target.check()
    session.jobs.drop("j", remove_outputs=True)
    assert target.everything == {}


@pytest.mark.long
def test_a_comparison_and_a_trial_write_nothing(target: Target) -> None:
    session = target.place.session
    target.place.put("a", "one")
    target.create()
    target.run()
    before = target.everything
    code = target.place.folder.parent / "code" / "job.py"
    same = session.jobs.compare("j", f"{code}:f")
    assert same.differences.differing == 0
    code.write_text(UPPER.replace("'up/'", "'up/new-'"))
    other = session.jobs.compare("j", f"{code}:f")
    assert other.differences.differing == 1
    assert target.everything == before


def test_a_definition_that_cannot_work_is_refused(target: Target) -> None:
    session = target.place.session
    target.place.session.volumes.alter("v", ignores=(".*", "mine", "mine/**"))

    def refused(error: type[Exception], match: str, **options: Any) -> None:
        with pytest.raises(error, match=match):
            target.create(**options)

    refused(InvalidValueError, "has no volume for them", outputs_to=None)
    refused(InvalidValueError, "outputs_prefix is a folder of", outputs_to=None, outputs_prefix="x", returns="n INT")
    refused(InvalidValueError, "their output files are overwritten", write="append")
    refused(InvalidStateError, "would be files of the volume public.v|would be files of the volume v", outputs_to="v")
    refused(InvalidStateError, "would be files of the volume", outputs_to="v", outputs_prefix="other")
    refused(InvalidValueError, "not a folder", outputs_prefix="../x")
    target.create(outputs_to="v", outputs_prefix="mine")
    session.volumes.create("w", str(_folder(target, "w")), queue_type=QueueType.NONE)
    code = target.place.folder.parent / "code" / "job.py"
    create: Callable[..., object] = session.jobs.create
    with pytest.raises(InvalidStateError, match="The job j writes its outputs to the same folder"):
        create("k", f"{code}:f", "u", volume="w", returns="made FILE", outputs_to="v", outputs_prefix="mine/below")
    session.volumes.create("open", str(_folder(target, "open")), queue_type=QueueType.NONE, ignores=())
    with pytest.raises(InvalidValueError, match="would list unfinished outputs"):
        create("k", f"{code}:f", "u", volume="w", returns="made FILE", outputs_to="open")


def test_jobs_that_feed_each_other_in_a_circle_are_refused(target: Target) -> None:
    session = target.place.session
    code = target.place.folder.parent / "code" / "job.py"
    target.create()
    session.volumes.create("w", str(_folder(target, "w")), queue_type=QueueType.NONE)
    create: Callable[..., object] = session.jobs.create
    create("next", f"{code}:f", "of_next", volume="out", returns="made FILE", outputs_to="w")
    with pytest.raises(InvalidStateError, match=r"they reach the volume w, .*, through the jobs j, next\."):
        create("last", f"{code}:f", "of_last", volume="w", returns="made FILE", outputs_to="v", outputs_prefix="again")
    session.jobs.drop("next")
    create("last", f"{code}:f", "of_last", volume="w", returns="made FILE", outputs_to="v", outputs_prefix="again")


@pytest.mark.long
def test_many_outputs_of_many_files_are_exactly_those_that_rows_name(target: Target) -> None:
    for number in range(60):
        target.place.put(f"d{number % 7}/{number}", f"{number}")
    target.create(max_files=25)
    target.run()
    for number in range(0, 60, 3):
        target.place.put(f"d{number % 7}/{number}", f"->again-{number}")
    for number in range(1, 60, 3):
        target.place.delete(f"d{number % 7}/{number}")
    target.run()
    assert len(target.files) == 40
    target.check()


@pytest.mark.long
def test_outputs_that_others_removed_or_changed_are_found_and_made_again(target: Target) -> None:
    for name in "abcd":
        target.place.put(name, f"text of {name}")
    target.create(UPPER.replace("'up/' + ", ""), outputs_prefix="up")
    target.run()
    jobs, folder = target.place.session.jobs, target.folder / "up"
    right = jobs.verify("j", outputs=True)
    assert (right.is_right, right.outputs) == (True, verify.ComparedOutputs(4, set(), 0, []))
    (folder / "a").unlink()
    (folder / "b").write_text("mine")
    (folder / "e").write_text("not an output")
    (target.folder / "beside").write_text("of others")
    found = jobs.verify("j", outputs=True)
    assert dict(found.wrong) == {Problem.OUTPUT: 2}
    assert sorted(found.examples) == [("a", Problem.OUTPUT), ("b", Problem.OUTPUT)]
    assert found.outputs == verify.ComparedOutputs(4, {"a", "b"}, 1, ["up/e"])
    assert jobs.verify("j").is_right  # rows alone
    assert jobs.verify("j", outputs=True, fix=True).fixed == 2
    (folder / "e").unlink()
    (target.folder / "beside").unlink()
    target.check()
    assert jobs.verify("j", outputs=True).is_right


def test_a_job_that_makes_no_files_has_no_outputs_to_verify(place: Place) -> None:
    place.put("a", "text")
    place.job("def f(file): return {'n': 1}")
    place.run()
    with pytest.raises(InvalidValueError, match="The job j makes no files"):
        place.session.jobs.verify("j", outputs=True)
