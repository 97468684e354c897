"""Steps in jobs on a real engine: what a history of files, code and commands computes, against a model that counts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.environments import environment
from tests.integration.conftest import Place
from volstream.base.definitions import FileJob, OnMove
from volstream.functions.steps import name_of
from volstream.jobs.batches.ledger import STEPS
from volstream.jobs.batches.step_values import blob_of, sweep_step_values
from volstream.ops.inspection.file_history import tell

#: A line for each call, so that a test sees what was computed.
CODE = """
import volstream

@volstream.step
def size(word):
    with open({log!r}, "a") as log:
        log.write(word + "\\n")
    return len(word) * {factor}

def f(file):
    words = file.read_text().split()
    for word in words:
        if word == "bad":
            raise ValueError("no good")
        yield {{"n": size(word) + {around}}}
"""


def source(place: Place, *, factor: int = 1, around: int = 0) -> str:
    return CODE.format(log=str(place.folder.parent / "calls"), factor=factor, around=around)


def edit(place: Place, **options: int) -> None:
    (place.folder.parent / "code" / "job.py").write_text(source(place, **options))


def computed(place: Place) -> list[str]:
    """The words whose sizes were computed since the last call."""
    log = place.folder.parent / "calls"
    words = sorted(log.read_text().split()) if log.exists() else []
    log.unlink(missing_ok=True)
    return words


def job(place: Place) -> FileJob:
    found = place.session.jobs.get("j")
    assert isinstance(found, FileJob)
    return found


def blobs(place: Place) -> set[str]:
    folder = Path(STEPS.of(place.session.home.warehouse, job(place).id))
    return {file.name for file in folder.iterdir()} if folder.is_dir() else set()


def names(paths: Sequence[str]) -> set[str]:
    return {*map(name_of, paths)}


def given(place: Place, **options: object) -> None:
    place.put("a", "x yy zzz")
    place.put("b", "x yy")
    place.job(source(place), **options)
    place.run()
    assert computed(place) == ["x", "x", "yy", "yy", "zzz"]
    assert blobs(place) == names(["a", "b"])


def test_an_edited_file_computes_what_is_new_and_a_deleted_one_leaves_nothing(place: Place) -> None:
    given(place)
    place.put("a", "zzz new x")
    place.delete("b")
    place.refresh()
    report = place.run()
    assert computed(place) == ["new"]
    assert report.progress.counted == {"step size computed": 1, "step size reused": 2}
    assert place.table() == [("a", 1), ("a", 3), ("a", 3)]
    assert blobs(place) == names(["a"])
    [event] = [event for event in tell(place.session.home, "v", "a") if event.what == "has kept values of steps"]
    assert event.details == {"job": "j", "values": {"size": 3}, "computed_last": {"size": 1}}


def test_a_replay_of_what_is_stale_reuses_and_a_plain_one_computes_all(place: Place) -> None:
    given(place)
    edit(place, around=10)
    place.session.jobs.replay("j", stale=True)
    assert computed(place) == []
    assert place.table() == [("a", 11), ("a", 12), ("a", 13), ("b", 11), ("b", 12)]
    edit(place, factor=2)
    place.session.jobs.replay("j", stale=True)
    assert computed(place) == ["x", "x", "yy", "yy", "zzz"]
    place.session.jobs.replay("j", paths=["b"])
    assert computed(place) == ["x", "yy"]
    place.session.jobs.replay("j")
    assert computed(place) == ["x", "x", "yy", "yy", "zzz"]
    place.session.jobs.clear_steps("j")
    assert blobs(place) == set()


@pytest.mark.parametrize("on_move", OnMove)
def test_a_moved_file_takes_its_values_along(place: Place, on_move: OnMove) -> None:
    given(place, on_move=on_move)
    (place.folder / "a").rename(place.folder / "moved")
    place.refresh()
    place.run()
    assert computed(place) == []
    assert blobs(place) == names(["b", "moved"])
    place.put("moved", "x yy zzz new")
    place.refresh()
    place.run()
    assert computed(place) == ["new"]


def test_a_retry_pays_for_what_is_missing(place: Place) -> None:
    place.put("a", "x yy bad")
    place.job(source(place), retries=0)
    place.run()
    assert computed(place) == ["x", "yy"]
    assert blobs(place) == names(["a"])
    place.put("a", "x yy good")
    place.refresh()
    place.run()
    assert computed(place) == ["good"]
    assert place.table() == [("a", 1), ("a", 2), ("a", 4)]


def test_a_dropped_job_leaves_no_values(place: Place) -> None:
    given(place)
    folder = Path(STEPS.of(place.session.home.warehouse, job(place).id))
    assert folder.is_dir()
    place.session.jobs.drop("j")
    assert not folder.exists()


def test_the_daemon_removes_old_values_of_files_that_are_gone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    from volstream.jobs.batches import step_values

    given(place)
    home, own = place.session.home, job(place)
    step_values.values_of(home.warehouse, own).write(name_of("gone"), b"late")
    assert sweep_step_values(home.catalog, home.warehouse, own) == 0, "a worker may be writing it"
    monkeypatch.setattr(step_values, "_LEFT", timedelta(0))
    assert sweep_step_values(home.catalog, home.warehouse, own) == 1
    assert blobs(place) == names(["a", "b"])
    (place.folder.parent / "code" / "job.py").write_text("def f(file): return {'n': 1}\n")
    assert sweep_step_values(home.catalog, home.warehouse, own) == 2, "the function has no steps any more"


def test_another_process_finds_the_values(place: Place) -> None:
    """Each isolated child is new: nothing is kept in memory."""
    given(place, isolate=True)
    place.put("a", "x yy zzz new")
    place.refresh()
    place.run()
    assert computed(place) == ["new"]


@pytest.mark.long
def test_an_environment_finds_the_values_through_its_parent(place: Place, tmp_path: Path) -> None:
    given(place, environment=str(environment(tmp_path / "env")))
    place.put("a", "x yy zzz new")
    place.refresh()
    place.run()
    assert computed(place) == ["new"]


def test_a_function_of_a_program_keeps_its_values(place: Place) -> None:
    import volstream

    log = str(place.folder.parent / "calls")

    def made(around: int) -> Any:
        @volstream.step
        def size(word: str) -> int:
            with open(log, "a") as file:
                file.write(f"{word}\n")
            return len(word)

        def f(file: Any) -> Any:
            return [{"n": size(word) + around} for word in file.read_text().split()]

        return f

    place.put("a", "x yy")
    place.session.jobs.create("j", made(0), "t", returns="n INT", volume="v")
    place.run()
    assert computed(place) == ["x", "yy"]
    place.put("a", "x yy zzz")
    place.refresh()
    place.run()
    assert computed(place) == ["zzz"]
    place.session.jobs.alter("j", function=made(5))
    place.session.jobs.replay("j", stale=True)
    assert computed(place) == [], "the code around the step is other code"
    assert place.table() == [("a", 6), ("a", 7), ("a", 8)]


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[] if seed < 1 else pytest.mark.long) for seed in range(6)])
def test_random_histories_compute_what_is_new(place: Place, seed: int) -> None:
    chosen = random.Random(seed)
    words = [f"w{'x' * number}" for number in range(10)] + ["bad"]
    files: dict[str, list[str]] = {}
    done: dict[str, list[str]] = {}  # as they were processed
    kept: dict[str, set[tuple[int, str]]] = {}
    code = {"factor": 1, "around": 0}
    place.job(source(place), retries=0, pause_after=0, on_move=chosen.choice([*OnMove]))

    def call(path: str, text: Sequence[str]) -> list[str]:
        had, used, new = kept.get(path, set()), set[tuple[int, str]](), []
        for word in text:
            if word == "bad":
                break
            key = (code["factor"], word)
            new += [word] if key not in had | used else []
            used.add(key)
        kept[path] = had | used if "bad" in text else used
        return new

    def process(paths: Sequence[str]) -> Counter[str]:
        return Counter(word for path in paths for word in call(path, files[path]))

    for _ in range(14):
        for _ in range(chosen.randrange(1, 4)):
            path = chosen.choice(sorted(files)) if files and chosen.random() < 0.6 else f"f{chosen.randrange(8)}"
            match chosen.randrange(6):
                case 0 if path in files:
                    del files[path]
                    place.delete(path)
                case 1:
                    code[chosen.choice(["factor", "around"])] += 1
                    edit(place, **code)
                case _:
                    had = files.get(path, [])
                    # A last word of its own: no other file has the same content, which would be a move.
                    text = [*[*had[:-1], *chosen.choices(words, k=2)][-5:], f"own{chosen.randrange(10**9)}"]
                    files[path] = text
                    place.put(path, " ".join(text))
        place.refresh()
        changed = [path for path in files if done.get(path) != files[path]]
        expected = process(changed)
        for path in [path for path in done if path not in files]:
            kept.pop(path, None)
        place.run()
        if not Path(place.location).exists():  # no file has come yet
            continue
        done = {path: list(text) for path, text in files.items()}
        assert Counter(computed(place)) == expected
        good = [path for path in files if "bad" not in files[path]]
        match chosen.randrange(6):
            case 0:
                stale = place.session.jobs.code("j")
                before = {path for path, _ in place.table()}
                place.session.jobs.replay("j", stale=True)
                assert stale is not None or not before
                again = Counter(computed(place))
                # Other tests check which files are stale. A stale file computes the values that it lacks, and no others.
                most = Counter[str]()
                for path in sorted(before & {*good}):
                    if any((code["factor"], word) not in kept[path] for word in files[path]):
                        most += Counter(call(path, files[path]))
                assert again == most
            case 1:
                some = chosen.sample(good, k=min(2, len(good)))
                if some:
                    for path in some:
                        kept.pop(path, None)
                    place.session.jobs.replay("j", paths=some)
                    assert Counter(computed(place)) == process(some)
            case _:
                pass
        rows = dict.fromkeys(good, 0)
        for path, _ in place.table():
            rows[path] = rows.get(path, 0) + 1
        assert {path: count for path, count in rows.items() if path in good} == {path: len(files[path]) for path in good}
        assert blobs(place) == names([path for path in files if kept.get(path)])
        for path in files:
            blob = blob_of(place.session.home.warehouse, job(place), path)
            assert (0 if blob is None else len(blob.values)) == len(kept.get(path, ()))
