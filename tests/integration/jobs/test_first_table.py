"""From files to a table in one call, with functions that no file has and columns that nobody declared."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import objects
from tests.commands import Shell
from tests.integration.conftest import Home, Place, session_on
from tests.waiting import eventually
from volstream.api.objects.jobs import Jobs
from volstream.base.definitions import JobState
from volstream.base.model.names import Name
from volstream.base.threads import Stop
from volstream.errors import FunctionLoadError, InvalidStateError, InvalidValueError
from volstream.ops.inspection import details


class Count(NamedTuple):
    n: int


def sized(by: int = 1) -> Callable[[Any], Any]:
    """A function that no file has at its top."""
    return lambda file: {"n": len(file.read_text()) * by}


@pytest.fixture
def run(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[list[Any], str]]:
    """Runs a function on the folder ``files``, into the table ``t`` of the test; returns its rows, and what was told."""
    (tmp_path / "files").mkdir()

    def call(function: Any, files: Path | str = tmp_path / "files", **options: Any) -> tuple[list[Any], str]:
        frame = home.session.run(function, files, home.name("t"), **options)
        told = [line for line in capsys.readouterr().err.splitlines(keepends=True) if not line.startswith("20")]  # no log
        return sorted(tuple(row) for row in frame.collect()), "".join(told)

    return call


Run = Callable[..., tuple[list[Any], str]]


@pytest.mark.long
def test_a_second_call_does_what_changed(run: Run, home: Home, tmp_path: Path) -> None:
    files = tmp_path / "files"
    for name in ("a", "b"):
        (files / name).write_text(name)
    rows, told = run(sized())
    assert rows == [("a", 1), ("b", 1)]
    assert "Inferred columns from 2 files: n BIGINT.\n2 files processed, 0 failed, 0 removed.\n" in told
    assert run(sized())[1] == "No file has changed.\n"
    (files / "a").write_text("aaa")
    (files / "b").unlink()
    (files / "c").write_text("cc")
    rows, told = run(sized())
    assert rows == [("a", 3), ("c", 2)]
    assert told == "2 files processed, 0 failed, 1 removed.\n"
    assert [str(volume.name) for volume in home.session.volumes.list()] == ["files"]


def test_a_pattern_without_a_match_is_said_as_it_was_given(run: Run, tmp_path: Path) -> None:
    (tmp_path / "files" / "a.txt").write_text("a")
    with pytest.raises(InvalidValueError, match=r"None of the 1 file in .* matches '\*.mp3'. Correct the pattern.$"):
        run(lambda file: {"n": file.size}, pattern="*.mp3")


def test_another_function_for_the_same_table_is_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / "files" / "a").write_text("a")
    run(sized())

    def other(file: Any) -> Any:
        return {"n": 2}

    _, told = run(other)
    assert "has changed: function " in told
    assert "-> test_another_function_for_the_same_table_is_said.<locals>.other" in told or "-> other" in told
    assert "Undo: volstream revert job " in told


@pytest.mark.long
def test_its_frame_shows_rows_in_a_notebook(run: Run, home: Home, tmp_path: Path) -> None:
    (tmp_path / "files" / "a").write_text("a")
    run(sized())
    html = home.session.run(sized(), tmp_path / "files", home.name("t"))._repr_html_()
    assert html is not None
    assert "<th>_file_path</th><th>n</th>" in html


@pytest.mark.long
def test_a_call_finds_what_another_program_has_made_meanwhile(
    run: Run, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "files" / "a").write_text("a")
    run(sized())
    catalog = home.session.home.catalog
    find, list_ = catalog.jobs.find, catalog.volumes.list
    looks = iter([lambda _: None])
    monkeypatch.setattr(catalog.jobs, "find", lambda name: next(looks, find)(name))
    lists = iter([list])
    monkeypatch.setattr(catalog.volumes, "list", lambda: next(lists, list_)())
    assert run(sized()) == ([("a", 1)], "No file has changed.\n")
    assert len(list_()) == 1


@pytest.mark.long
def test_changed_code_takes_new_files_and_the_rest_after_a_replay(run: Run, home: Home, tmp_path: Path) -> None:
    (tmp_path / "files" / "a").write_text("a")
    run(sized())
    (tmp_path / "files" / "b").write_text("b")
    rows, told = run(lambda file: {"n": len(file.read_text()) * 10, "name": file.name})
    assert rows == [("a", 1, None), ("b", 10, "b")]
    assert "Inferred columns from 2 files: name STRING." in told
    assert "1 of 2 files last processed by older code" in told
    job = objects.file_job(home.session.jobs.get(home.name("t")))
    assert "older code" in details.described(home.session.home, job)["code"]
    home.session.jobs.replay(home.name("t"))
    job = objects.file_job(home.session.jobs.get(home.name("t")))
    assert "made all rows" in details.described(home.session.home, job)["code"]


@pytest.mark.long
def test_files_that_failed_are_told_and_tried_again_with_other_code(run: Run, home: Home, tmp_path: Path) -> None:
    (tmp_path / "files" / "a").write_text("a")
    (tmp_path / "files" / "bad").write_text("b")

    def picky(file: Any) -> Count:
        if file.name == "bad":
            raise ValueError("no good")
        return Count(1)

    rows, told = run(picky)
    assert rows == [("a", 1)]
    assert "Failed: bad: ValueError: no good\n" in told
    assert run(lambda file: {"n": 5})[0] == [("a", 1), ("bad", 5)]


@pytest.mark.long
def test_a_job_that_paused_itself_goes_on_with_the_next_call(run: Run, home: Home, tmp_path: Path) -> None:
    (tmp_path / "files" / "a").write_text("a")

    class Broken:
        def __init__(self) -> None:
            raise OSError("no model")

        def __call__(self, file: Any) -> Count:
            raise AssertionError

    with pytest.raises(FunctionLoadError, match="no model"):
        run(Broken)
    assert home.session.jobs.get(home.name("t")).state is JobState.PAUSED
    assert run(sized())[0] == [("a", 1)]


@pytest.mark.long
def test_options_are_those_of_the_call(run: Run, home: Home, tmp_path: Path) -> None:
    (tmp_path / "files" / "a").write_text("a")
    run(sized(), retries=7, on_change=True)
    job = objects.file_job(home.session.jobs.get(home.name("t")))
    assert (job.retries, job.on_change) == (7, True)
    assert "retries 7 -> 3. Undo: volstream revert job" in run(sized())[1]
    job = objects.file_job(home.session.jobs.get(home.name("t")))
    assert (job.retries, job.on_change) == (3, True), "the daemon goes on"
    home.session.jobs.alter(home.name("t"), every=60)
    assert "Undo" not in run(sized())[1]
    assert objects.file_job(home.session.jobs.get(home.name("t"))).every == 60
    assert "Undo" in run(sized(), on_change=True)[1]
    assert str(objects.file_job(home.session.jobs.get(home.name("t"))).trigger) == "on-change"
    with pytest.raises(InvalidStateError, match=r"was created with write=upsert, which cannot be changed"):
        run(sized(), write="append")
    with pytest.raises(InvalidValueError, match="no argument 'retrys'"):
        run(sized(), retrys=1)


@pytest.mark.long
def test_a_job_that_does_something_else_is_not_taken(run: Run, home: Home, tmp_path: Path) -> None:
    (tmp_path / "files" / "a").write_text("a")
    run(sized())
    (tmp_path / "others").mkdir()
    with pytest.raises(InvalidStateError, match=r"does not process the files of .*others"):
        run(sized(), tmp_path / "others")


@pytest.mark.long
def test_a_folder_around_the_home_can_be_taken(run: Run, tmp_path: Path) -> None:
    (tmp_path / "files" / "a").write_text("a")
    assert run(sized(), tmp_path)[0] == [("files/a", 1)]


def test_a_folder_without_files_gives_an_empty_table_if_the_columns_are_declared(run: Run) -> None:
    def count(file: Any) -> Count:
        raise AssertionError

    assert run(count) == ([], "No file has changed.\n")


@pytest.mark.long
def test_a_function_of_a_file_is_read_from_it(run: Run, home: Home, tmp_path: Path) -> None:
    (tmp_path / "files" / "a").write_text("a")
    code = tmp_path / "code.py"
    code.write_text("def f(file): return {'n': 1}")
    assert run(f"{code}:f")[0] == [("a", 1)]
    code.write_text("def f(file): return {'n': 2}")
    rows, told = run(f"{code}:f")
    assert rows == [("a", 1)]
    assert "The code has changed" in told


@pytest.mark.parametrize(
    ("function", "why"),
    [
        pytest.param(lambda file: None, "the function returned no rows for 2 files", marks=pytest.mark.long),
        (
            lambda file: 1 / 0,
            "the function failed for 2 files of 2, such as a: ZeroDivisionError: division by zero \\(test_first_table.py, line \\d+\\)",
        ),
        (
            lambda file: file.path,
            "A File has no attribute 'path'. Use relative_path, or local_path\\(\\) for a path on this machine.",
        ),
        pytest.param(lambda file: file.sise, "A File has no attribute 'sise'. Did you mean 'size'\\?", marks=pytest.mark.long),
        pytest.param(lambda file: 5, "The function returned a value of type int; return a dict", marks=pytest.mark.long),
        (lambda file: os._exit(3), "The process that ran the function ended with exit status 3"),
        pytest.param(
            lambda file: {"n": 1 if file.name == "a" else "x"}, "'n' is BIGINT in a, but STRING in b", marks=pytest.mark.long
        ),
    ],
)
def test_columns_that_cannot_be_inferred_are_asked_for(place: Place, function: Any, why: str) -> None:
    for name in ("a", "b"):
        place.put(name, name)
    with pytest.raises(InvalidValueError, match=why) as caught:
        place.session.jobs.create("j", function, "t", volume="v")
    assert "returns" in caught.value.remedy
    assert place.session.jobs.list() == []


def test_a_package_that_is_missing_is_named_as_pip_knows_it(place: Place) -> None:
    place.put("a", "a")
    with pytest.raises(InvalidValueError, match=r"No module named 'fitz'.* Install pymupdf into volstream's environment"):
        place.session.jobs.create("j", lambda file: __import__("fitz.nothing"), "t", volume="v")


def test_a_volume_without_files_shows_no_columns(place: Place) -> None:
    with pytest.raises(InvalidValueError, match="from the volume v: there are no files yet"):
        place.session.jobs.create("j", sized(), "t", volume="v")
    place.put("a", "a")
    with pytest.raises(InvalidValueError, match="no file satisfies size > 5"):
        place.session.jobs.create("j", sized(), "t", volume="v", where="size > 5")


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        pytest.param("a.txt", ["a.txt"], marks=pytest.mark.long),
        ("**/*.txt", ["a.txt", "b.txt", "sub/d.txt"]),
        pytest.param("*.txt", ["a.txt", "b.txt"], marks=pytest.mark.long),
        pytest.param(["a.txt", "sub/d.txt"], ["a.txt", "sub/d.txt"], marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_file_a_glob_and_a_list_are_files_of_their_folder(place: Place, given: str | list[str], taken: list[str]) -> None:
    for name in ("a.txt", "b.txt", "c.csv", "sub/d.txt"):
        place.put(name, name)
    files = [place.folder / one for one in given] if isinstance(given, list) else place.folder / given
    rows = place.session.run(sized(), files, into=f"looks_{uuid.uuid4().hex}").collect()
    assert sorted(row._file_path for row in rows) == taken
    assert len(place.session.volumes) == 1, "the folder was a volume before"


def test_hidden_and_temporary_files_are_left_out(place: Place) -> None:
    for name in ("a.txt", ".DS_Store", ".git/config", "b.txt~", "c.part"):
        place.put(name, name)
    rows = place.session.run(sized(), place.folder, into=f"looks_{uuid.uuid4().hex}").collect()
    assert [row._file_path for row in rows] == ["a.txt"]


@pytest.mark.long
def test_the_table_has_the_files_of_the_last_call(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.txt", "b.txt", "c.jpg"):
        place.put(name, name)
    into, folder = f"looks_{uuid.uuid4().hex}", place.folder

    def taken(files: Any, **options: Any) -> list[str]:
        return sorted(row._file_path for row in place.session.run(sized(), files, into, **options).collect())

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    assert taken([folder / "c.jpg"]) == ["c.jpg"]
    with monkeypatch.context() as patch:
        patch.setattr(Jobs, "heal", interrupted)
        with pytest.raises(KeyboardInterrupt):
            taken(folder)
    assert taken(folder, pattern="*.txt") == ["a.txt", "b.txt"]


def test_a_call_takes_the_files_that_an_earlier_one_left_out_whatever_became_of_that(place: Place) -> None:
    into = f"looks_{uuid.uuid4().hex}"

    def taken(pattern: str | None = None) -> list[str]:
        frame = place.session.run(sized(), place.folder, into, schema="n BIGINT", max_files=1, pattern=pattern)
        return sorted(row._file_path for row in frame.collect())

    place.put("a.txt", "a")
    place.put("b.txt", "b")
    assert taken("*.png") == []
    assert taken() == ["a.txt", "b.txt"]
    place.put("c.txt", "c")
    place.refresh()
    stop = Stop()
    place.session.jobs.run(into, stop=stop, observe=lambda _: stop.set())
    assert place.session.home.catalog.consumptions.open_plans(), "the run was interrupted"
    assert taken("b*") == ["b.txt"]


def test_a_job_that_no_call_made_is_not_changed_unless_asked(place: Place) -> None:
    place.put("a.txt", "a")
    place.refresh()
    into = f"looks_{uuid.uuid4().hex}"
    code = place.folder.parent / "code.py"
    code.write_text("def f(file): return {'n': 1}\ndef g(file): return {'n': 2}\n")
    made = place.session.jobs.create(into, f"{code}:f", into, volume="v", returns="n BIGINT", retries=7)
    with pytest.raises(InvalidStateError, match=r"was not made by run, and the call would change its function\.") as caught:
        place.session.run(f"{code}:g", place.folder, into, retries=7)
    assert "replace=True" in caught.value.remedy
    assert place.session.jobs.get(into) == made
    (row,) = place.session.run(f"{code}:f", place.folder, into, retries=7).collect()  # changes nothing
    assert row.n == 1
    place.session.run(f"{code}:g", place.folder, into, retries=7, replace=True)
    place.session.run(f"{code}:f", place.folder, into)  # it is run's from now on
    assert objects.file_job(place.session.jobs.get(into)).retries == 3


def test_a_table_that_no_job_made_is_not_filled_unless_asked(run: Run, home: Home, tmp_path: Path) -> None:
    (tmp_path / "files" / "a.txt").write_text("a")
    home.sql("CREATE TABLE t$ (n BIGINT)")
    with pytest.raises(InvalidStateError, match=r"exists, and no job made it"):
        run(sized(), schema="n BIGINT")
    assert home.session.table(home.name("t")).columns == ["n"]
    assert run(sized(), schema="n BIGINT", replace=True)[0] == [("a.txt", 1)]


SLOW_IMPORT = """
import pathlib, time
pathlib.Path({0!r}, "importing").touch()
while not pathlib.Path({0!r}, "go on").exists():
    time.sleep(0.05)
def f(file):
    return {{"n": 2}}
"""


def test_a_run_of_a_daemon_in_the_middle_of_a_call_does_not_keep_the_rows_of_other_files(place: Place, tmp_path: Path) -> None:
    into, code = f"looks_{uuid.uuid4().hex}", tmp_path / "code.py"
    place.put("a.txt", "a")
    place.put("b.txt", "b")

    def taken(pattern: str) -> list[str]:
        frame = place.session.run(f"{code}:f", place.folder, into, schema="n BIGINT", pattern=pattern)
        return sorted(row._file_path for row in frame.collect())

    code.write_text("def f(file): return {'n': 1}\n")
    assert taken("*") == ["a.txt", "b.txt"]
    code.write_text(SLOW_IMPORT.format(str(tmp_path)))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(taken, "b*")
        eventually((tmp_path / "importing").exists, 60)
        place.session.jobs.run(into)
        (tmp_path / "go on").touch()
        assert call.result(120) == ["b.txt"]


def test_a_call_after_one_on_an_empty_folder_may_take_other_files(place: Place) -> None:
    into = f"looks_{uuid.uuid4().hex}"

    def taken(pattern: str | None = None) -> list[str]:
        frame = place.session.run(sized(), place.folder, into, schema="n BIGINT", pattern=pattern)
        return sorted(row._file_path for row in frame.collect())

    assert taken("*.txt") == []
    place.put("a.txt", "a")
    place.put("b.log", "b")
    assert taken() == ["a.txt", "b.log"]
    assert taken("*.log") == ["b.log"]
    with pytest.raises(InvalidValueError, match=r"None of the 2 files in .* matches '\*\.lgo'"):
        taken("*.lgo")
    assert taken("*.log") == ["b.log"]
    place.delete("b.log")
    assert taken("*.log") == [], "its files are gone, and that is no slip of the pattern"


def test_files_that_are_not_there_are_refused(place: Place) -> None:
    place.put("a.txt", "a")
    with pytest.raises(InvalidValueError, match=r"gone.txt is not a file"):
        place.session.run(sized(), [place.folder / "a.txt", place.folder / "gone.txt"], into="looks")
    with pytest.raises(InvalidValueError, match="The list of files is empty"):
        place.session.run(sized(), [], into="looks")


def test_columns_are_inferred_from_files_that_the_job_takes_until_all_have_a_value(place: Place) -> None:
    for number in range(20):
        place.put(f"{number:02}", "x" * number)
    told: list[str] = []
    job = place.session.jobs.create(
        "j",
        lambda file: {"size": file.size, "note": "long" if file.size == 15 else None},
        "t",
        volume="v",
        where="size > 10",
        tell=told.append,
    )
    assert objects.file_job(job).returns == "size BIGINT, note STRING"
    assert len(told) == 1
    assert "always empty" not in told[0]


def test_the_samples_for_which_the_function_failed_are_named_with_its_line(place: Place, tmp_path: Path) -> None:
    for name in "abcd":
        place.put(name, name)
    code = tmp_path / "totals.py"
    code.write_text("def f(file):\n    if file.name > 'b':\n        raise ValueError('no total')\n    return {'total': None}\n")
    told: list[str] = []
    place.session.jobs.create("j", f"{code}:f", "t", volume="v", tell=told.append)
    assert told == [
        "Inferred columns from 2 files: total STRING. But the function failed for 2 files of 4, such as c: "
        "ValueError: no total (totals.py, line 3). total was always empty, so it is STRING; to say otherwise, give returns."
    ]


@pytest.mark.long
def test_columns_of_a_job_on_a_stream_are_inferred_from_its_volume(place: Place) -> None:
    place.put("a", "abc")
    place.session.streams.create("s", "v")
    job = place.session.jobs.create("j", sized(), "t", stream="s")
    assert objects.file_job(job).returns == "n BIGINT"


def test_another_session_runs_a_function_that_no_file_has(place: Place) -> None:
    place.put("a", "abc")
    place.session.jobs.create("j", sized(3), "t", volume="v")
    with session_on(place.gateway, place.session.home.settings) as other:
        other.jobs.run("j")
    assert place.table() == [("a", 9)]
    found = details.described(place.session.home, place.session.jobs.get("j"))
    assert found["code"] == "in the catalog, because the function has no file; made all rows"
    assert "len(file.read_text()) * by" in found["source"]
    assert "pickled" not in found


@pytest.mark.long
def test_code_that_no_file_has_is_compared(place: Place) -> None:
    place.put("a", "abc")
    place.session.jobs.create("j", sized(), "t", volume="v")
    place.run()
    found = place.session.jobs.compare("j", sized(2))
    assert (found.differences.files, found.differences.same) == (1, 0)


def test_sql_calls_a_function_that_no_file_has(home: Home) -> None:
    home.session.functions.create(home.name("twice"), lambda value: value * 2, "INT")
    assert home.rows("SELECT twice$(21)") == [(42,)]


def test_a_backup_has_functions_that_no_file_has(shell: Shell, tmp_path: Path) -> None:
    other = shell.beside("other")
    from volstream.api.session import Session
    from volstream.base import config

    with Session(config.load(shell.home)) as session:
        session.jobs.create("j", sized(), "t", volume="v", returns="n BIGINT")
    shell.ok("backup", str(tmp_path / "backup"))
    other.ok("restore", str(tmp_path / "backup"))
    found = json.loads(other.ok("describe", "job", "j", "--format", "json"))
    assert "file.read_text()" in found["source"]


def test_an_export_leaves_out_what_no_file_has_and_says_so(shell: Shell) -> None:
    from volstream.api.session import Session
    from volstream.base import config

    with Session(config.load(shell.home)) as session:
        session.jobs.create("j", sized(), "t", volume="v", returns="n BIGINT")
    _, out, err = shell("export", "-")
    assert "jobs.j" not in out
    assert "volumes.v" in out
    said = "their code is in the catalog and not in a file: job j. Name a file: --function FILE.py:FUNC."
    assert said in out
    assert said in err


@pytest.mark.long
def test_a_command_infers_and_says_so(shell: Shell) -> None:
    shell.functions.write_text("def f(file): return {'n': 1, 'name': file.name}")
    code, out, err = shell("create-job", "j", "--volume", "v", "--function", f"{shell.functions}:f", "--into", "t")
    assert code == 0
    assert "Inferred columns from 2 files: n BIGINT, name STRING." in err
    assert "Job j -> table t (n BIGINT, name STRING)" in out


@pytest.mark.long
def test_a_pipeline_with_undeclared_columns_is_applied_once(shell: Shell, tmp_path: Path) -> None:
    shell.functions.write_text("def f(file): return {'n': 1}")
    file = tmp_path / "pipeline.toml"
    file.write_text(f'[jobs.j]\nvolume = "v"\nfunction = "{shell.functions}:f"\ninto = "t"\n')
    shell.ok("apply", str(file))
    assert json.loads(shell.ok("describe", "job", "j", "--format", "json"))["returns"] == "n BIGINT"
    assert "1 unchanged" in shell.ok("apply", str(file)) or "nothing" in shell.ok("apply", str(file)).lower()


def test_a_table_gets_the_columns_that_new_code_returns(place: Place) -> None:
    place.put("a", "abc")
    place.session.jobs.create("j", sized(), "t", volume="v")
    told: list[str] = []
    job = place.session.jobs.alter("j", function=lambda file: {"n": 1, "m": 2.5}, tell=told.append)
    assert objects.file_job(job).returns == "n BIGINT, m DOUBLE"
    assert told == ["Inferred columns from 1 file: m DOUBLE."]
    assert place.session.home.catalog.jobs.get(Name.parse("j")) == job
