"""Steps: what is kept for a file, against a model that counts calls; and which code a value depends on."""

from __future__ import annotations

import json
import pickle
import random
import textwrap
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory import MemoryStore
from tests.running import Runner, failed
from volstream.base.model.work import FailureKind
from volstream.functions.pickled import archive_of, source_of
from volstream.functions.source import FunctionSource
from volstream.functions.step_code import code_of
from volstream.functions.steps import StepTarget, decoded, encoded, name_of, unpack
from volstream.jobs.batches.step_values import FolderOfBlobs

#: A job's code: chunks of a file, each with a value of a step. ``calls``: a file that gets a line for each call.
CODE = """
import volstream
CALLS = {calls!r}
{comment}

def helper(text):
    return len(text) * {factor}

@volstream.step
def embed(text):
    with open(CALLS, "a") as file:
        file.write(text + "\\n")
    if text == "broken":
        raise ValueError("broken")
    return {{"size": helper(text), "code": {code}}}

def f(file):
    for number, text in enumerate(file.read_text().split()):
        value = embed(text)
        yield {{"n": {around} + value["size"] * 1000 + value["code"]}}
"""


@pytest.fixture
def blobs(tmp_path: Path) -> FolderOfBlobs:
    return FolderOfBlobs(str(tmp_path / "warehouse"), "_steps/j")


@pytest.fixture
def target(blobs: FolderOfBlobs) -> StepTarget:
    return StepTarget(blobs, 1 << 20)


def counts(table: pa.Table) -> dict[str, float]:
    sums: dict[str, float] = {}
    for text in table["counted"].drop_null().to_pylist():
        for name, number in json.loads(text).items():
            sums[name] = sums.get(name, 0) + number
    return sums


@pytest.mark.parametrize("seed", range(12))
def test_random_edits_pay_for_what_is_new(run: Runner, store: MemoryStore, target: StepTarget, tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    words = [f"w{number}" for number in range(12)] + ["broken"]
    calls = tmp_path / "calls"
    texts: dict[str, list[str]] = {}
    kept: dict[str, set[tuple[int, int, str]]] = {}
    code = factor = around = comment = 0
    for _ in range(25):
        match chosen.randrange(8):
            case 0:
                code += 1
            case 1:
                factor += 1
            case 2:
                around += 1
            case 3:
                comment += 1
            case _:
                name = chosen.choice("abc")
                texts[name] = texts.get(name, [])[: chosen.randrange(6)] + chosen.choices(words, k=chosen.randrange(5))
        if not texts:
            continue
        source = CODE.format(calls=str(calls), code=code, factor=factor, around=around, comment=f"# {comment}")
        calls.write_text("")
        done = run(source, [store.put(name, " ".join(text).encode()) for name, text in texts.items()], steps=target)
        made: list[str] = []
        reused = 0
        for name, text in texts.items():
            had = kept.get(name, set())
            used: set[tuple[int, int, str]] = set()
            for word in text:
                key = (code, factor, word)
                reused += key in had | used
                if key not in had | used:
                    made.append(word)
                if word == "broken":
                    break
                used.add(key)
            kept[name] = had | used if "broken" in text else used
        assert sorted(calls.read_text().split()) == sorted(made)
        assert counts(done).get("step embed reused", 0) == reused
        assert counts(done).get("step embed computed", 0) == sum(word != "broken" for word in made)
        expected = {
            name: [around + len(word) * factor * 1000 + code for word in text]
            for name, text in texts.items()
            if "broken" not in text
        }
        rows: dict[str, list[int]] = {name: [] for name in expected}
        for path, row in zip(done["path"].to_pylist(), done["result"].to_pylist(), strict=True):
            if row is not None:
                rows[path].append(row["n"])
        assert rows == expected
        assert {*failed(done)} == {name for name, text in texts.items() if "broken" in text}
        assert isinstance(target.store, FolderOfBlobs)
        for name in texts:
            blob = target.store.read(name_of(name))
            assert (0 if blob is None else len(unpacked(blob))) == len(kept[name])


def unpacked(blob: bytes) -> Sequence[str]:
    return [*unpack(blob).values]


@pytest.mark.parametrize("seed", range(3))
def test_damage_costs_calls_and_never_a_row(
    run: Runner, store: MemoryStore, target: StepTarget, blobs: FolderOfBlobs, tmp_path: Path, seed: int
) -> None:
    chosen = random.Random(seed)
    calls = tmp_path / "calls"
    source = CODE.format(calls=str(calls), code=1, factor=1, around=0, comment="")
    files = [store.put("a", b"x yy zzz")]
    expected = [(path, row) for path, row in results_of(run(source, files, steps=target))]
    whole = blobs.read(name_of("a"))
    assert whole is not None
    for _ in range(20):
        at = chosen.randrange(len(whole))
        torn = (
            whole[:at] if chosen.random() < 0.5 else whole[:at] + bytes([whole[at] ^ 1 << chosen.randrange(8)]) + whole[at + 1 :]
        )
        blobs.write(name_of("a"), torn)
        calls.write_text("")
        assert results_of(run(source, files, steps=target)) == expected
        assert calls.read_text().split() == ["x", "yy", "zzz"]
        assert blobs.read(name_of("a")) == whole


def results_of(table: pa.Table) -> list[tuple[str, Any]]:
    return [*zip(table["path"].to_pylist(), table["result"].to_pylist(), strict=True)]


PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(),
        st.decimals(),
        st.uuids(),
        st.dates(),
        st.datetimes(),
        st.timedeltas(),
    ),
    lambda inner: st.one_of(st.lists(inner), st.tuples(inner, inner), st.dictionaries(st.text(), inner)),
    max_leaves=10,
)


@given(PLAIN)
def test_a_plain_value_comes_back_as_it_was(value: object) -> None:
    back = decoded(encoded(value, "It"))
    assert type(back) is type(value)
    assert encoded(back, "It") == encoded(value, "It")
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype="float32").reshape(2, 3),
        np.array(["a", "bc"]),
        np.array(["2026-01-01"], dtype="datetime64[us]"),
        np.float32(1.1),
        np.bool_(True),
        datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2026, 1, 1, tzinfo=UTC),
    ],
)
def test_numpy_and_zones_come_back_as_they_were(value: Any) -> None:
    back = decoded(encoded(value, "It"))
    assert type(back) is type(value)
    assert np.array_equal(back, value)
    assert getattr(back, "dtype", None) == getattr(value, "dtype", None)
    assert getattr(back, "tzinfo", None) == getattr(value, "tzinfo", None)


@pytest.mark.parametrize("equal", [(1, True), (1, 1.0), ("1", 1), ((1,), [1]), (0.0, -0.0), (b"a", "a"), (Decimal(1), 1)])
def test_equal_values_of_other_types_are_others(equal: tuple[object, object]) -> None:
    first, second = equal
    assert encoded(first, "It") != encoded(second, "It")


def test_the_same_object_twice_is_two_equal_ones() -> None:
    text, other = "a" * 1000, "".join(["a"] * 1000)
    assert encoded([text, text], "It") == encoded([text, other], "It")


@pytest.mark.parametrize("value", [object(), Path("a"), print, {"a": [int]}, np.array([object()]), pa.table({"a": [1]})])
def test_what_is_not_plain_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be kept"):
        encoded(value, "The value of the step f")


def test_what_contains_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(TypeError, match="contains itself"):
        encoded(value, "It")


def code_in(folder: Path, code: str, name: str = "embed", **beside: str) -> str:
    """Returns the hash of the code of the step in a file, with modules beside it."""
    folder.mkdir(exist_ok=True)
    for module, text in beside.items():
        (folder / f"{module}.py").write_text(textwrap.dedent(text))
    (folder / "code.py").write_text(textwrap.dedent(code))
    from volstream.functions.finding import find

    source: FunctionSource = find(f"{folder / 'code.py'}:f")
    loaded: Any = source.load()
    step: Any = loaded
    for part in name.split("."):
        step = loaded.__globals__[part] if step is loaded and hasattr(loaded, "__globals__") else getattr(step, part)
    return code_of(source, step, loaded if isinstance(loaded, type) else None)


BASE = """
    import math
    import chunker, cleaner
    from volstream import step
    LIMIT = 10
    SCALE = 2
    model = {"a": 1}
    def unused(): return LIMIT
    def clean(text): return cleaner.clean(text)
    @step
    def embed(text): return [math.floor(len(clean(text)) * SCALE), model]
    def f(file):
        for text in chunker.split(file.read_text(), LIMIT):
            yield {"n": embed(text)}
"""
BESIDE = {"chunker": "def split(text, n): return text.split()\n", "cleaner": "def clean(text): return text.strip()\n"}


@pytest.mark.parametrize(
    ("edit", "same"),
    [
        (lambda text: text.replace("LIMIT = 10", "LIMIT = 11"), True),
        (lambda text: text.replace("def f(file):", "def f(file):\n        # a comment\n        print('x')"), True),
        (lambda text: text.replace("def unused(): return LIMIT", "def unused(): return 7"), True),
        (lambda text: text.replace("return [math", "return  [math"), True),
        (lambda text: text.replace("    def unused(): return LIMIT\n", ""), True),
        (lambda text: text + "    def g(): return 1\n", True),
        (lambda text: text.replace("SCALE = 2", "SCALE = 3"), False),
        (lambda text: text.replace("math.floor", "math.ceil"), False),
        (lambda text: text.replace("cleaner.clean(text)", "cleaner.clean(text).lower()"), False),
        (lambda text: text.replace('{"a": 1}', '{"a": 2}'), False),
        (lambda text: text.replace('model = {"a": 1}', "model = dict(a=1)"), False),
        (lambda text: text + "    print('at import')\n", False),
        (lambda text: text + "    def g():\n        global model\n        model = 1\n", False),
        (lambda text: text.replace("@step\n", "@step\n    @(lambda f: f)\n"), False),
    ],
)
def test_only_code_that_a_step_reaches_counts(tmp_path: Path, edit: Callable[[str], str], same: bool) -> None:
    first = code_in(tmp_path / "a", BASE, **BESIDE)
    assert edit(BASE) != BASE
    assert (code_in(tmp_path / "b", edit(BASE), **BESIDE) == first) is same


@pytest.mark.parametrize(("module", "same"), [("chunker", True), ("cleaner", False)])
def test_a_module_counts_whole_if_the_step_reaches_it(tmp_path: Path, module: str, same: bool) -> None:
    first = code_in(tmp_path / "a", BASE, **BESIDE)
    edited = {**BESIDE, module: BESIDE[module] + "def other(): pass\n"}
    assert (code_in(tmp_path / "b", BASE, **edited) == first) is same


def test_files_that_the_function_reads_count(tmp_path: Path) -> None:
    code = """
        import volstream
        @volstream.step
        def embed(text): return open("prompt.txt").read() + text
        @volstream.function(reads="prompt.txt")
        def f(file): return {"n": 1}
    """
    hashes = []
    for number, prompt in enumerate(["one", "two", "one"]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "prompt.txt").write_text(prompt)
        hashes.append(code_in(tmp_path / str(number), code))
    assert hashes[0] == hashes[2] != hashes[1]


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        # What it finds by other means than a name.
        ("def g(): return 1\n{}", "def g(): return 2\n{}", True),
        ("def g(): return 1\n{globals}", "def g(): return 2\n{globals}", False),
        # What a decorator hands to what it uses.
        ("@register\ndef g(): return 1\n{}", "@register\ndef g(): return 2\n{}", False),
        ("@functools.cache\ndef g(): return 1\n{}", "@functools.cache\ndef g(): return 2\n{}", True),
        # A class below one that it uses.
        ("class G(Base): x = 1\n{}", "class G(Base): x = 2\n{}", False),
        ("class G: x = 1\n{}", "class G: x = 2\n{}", True),
        # An import for what importing does; and one that others use.
        ("import extra\n{}", "{}", False),
        ("import extra\ndef g(): return extra.x\n{}", "{}", True),
    ],
)
def test_what_is_reached_by_detours_counts(tmp_path: Path, before: str, after: str, same: bool) -> None:
    frame = """import functools, volstream
registry = []
def register(f): registry.append(f); return f
class Base: pass
@volstream.step
def embed(text): return [register, Base, MORE]
def f(file): return {"n": 1}
"""

    def of(folder: str, text: str) -> str:
        dynamic = "{globals}" in text
        body = frame.replace("MORE", "globals()" if dynamic else "0") + text.replace("{globals}", "").replace("{}", "")
        return code_in(tmp_path / folder, body, extra="x = 1\n")

    assert (of("a", before) == of("b", after)) is same


CLASS = """
    import volstream
    class f:
        size = 1
        def __init__(self, model="m"): self.model = self.load(model)
        def load(self, name): return name
        @volstream.step
        def embed(self, text): return self.inner(text)
        def inner(self, text): return text + self.model
        def other(self, text): return text
        def __call__(self, file): return {"n": len(self.embed(file.read_text()))}
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("size = 1", "size = 1  # a comment", True),
        ('return {"n": len', 'return {"n": 1 + len', False),
        ("return text + self.model", "return text", False),
        ("return name", "return name * 2", False),
        ("size = 1", "size = 2", False),
    ],
)
def test_of_a_method_the_whole_file_counts(tmp_path: Path, old: str, new: str, same: bool) -> None:
    assert old in CLASS
    first = code_in(tmp_path / "a", CLASS, "embed")
    assert (code_in(tmp_path / "b", CLASS.replace(old, new), "embed") == first) is same


def test_what_a_class_was_set_up_with_is_part_of_the_key(run: Runner, store: MemoryStore, target: StepTarget) -> None:
    files = [store.put("a", b"text")]
    code = textwrap.dedent(CLASS)
    assert counts(run(code, files, steps=target)) == {"step f.embed computed": 1}
    assert counts(run(code, files, steps=target)) == {"step f.embed reused": 1}
    again = run(code, files, steps=target, arguments={"model": "mm"})
    assert counts(again) == {"step f.embed computed": 1}
    assert again["result"].to_pylist() == [{"n": 6}]


@pytest.mark.parametrize("kind", ["plain", "batch", "async", "async batch", "threads", "to_thread", "concurrent"])
def test_every_kind_of_call_finds_its_values(
    run: Runner, store: MemoryStore, target: StepTarget, tmp_path: Path, kind: str
) -> None:
    log = str(tmp_path / "log")
    start = (
        "import asyncio, volstream\nfrom concurrent.futures import ThreadPoolExecutor\n"
        f"def log(texts):\n    with open({log!r}, 'a') as file: file.write('\\n'.join(texts) + '\\n')\n"
    )
    one = "log([text]); return len(text)"
    each = "log(texts); return [len(text) for text in texts]"
    bodies = {
        "plain": f"@volstream.step\ndef size(text): {one}\ndef f(file): return [{{'n': size(t)}} for t in file.read_text().split()]",
        "batch": f"@volstream.step(batch_size=2)\ndef size(texts): {each}\n"
        "def f(file): return [{'n': n} for n in size(file.read_text().split())]",
        "async": f"@volstream.step\nasync def size(text): {one}\n"
        "async def f(file): return [{'n': n} for n in await asyncio.gather(*map(size, file.read_text().split()))]",
        "async batch": f"@volstream.step(batch_size=2)\nasync def size(texts): {each}\n"
        "async def f(file):\n    for n in await size(file.read_text().split()): yield {'n': n}",
        "threads": f"@volstream.step\ndef size(text): {one}\ndef f(file):\n    with ThreadPoolExecutor(2) as pool:\n"
        "        return [{'n': n} for n in pool.map(size, file.read_text().split())]",
        "to_thread": f"@volstream.step\ndef size(text): {one}\n"
        "async def f(file): return [{'n': await asyncio.to_thread(size, t)} for t in file.read_text().split()]",
        "concurrent": f"@volstream.step\ndef size(text): {one}\n@volstream.function(concurrency=3)\n"
        "def f(file): return [{'n': size(t)} for t in file.read_text().split()]",
    }
    code = start + bodies[kind]
    names = [f"f{number}" for number in range(4)]

    def called(text: str) -> tuple[list[list[int]], list[str]]:
        files = [store.put(name, f"{text} {name}".encode()) for name in names]
        Path(log).write_text("")
        done = run(code, files, steps=target)
        rows: dict[str, list[int]] = {name: [] for name in names}
        for path, row in results_of(done):
            rows[path] += [row["n"]] if row else []
        return [rows[name] for name in names], sorted(Path(log).read_text().split())

    assert called("a bb ccc") == ([[1, 2, 3, 2]] * 4, sorted(["a", "bb", "ccc"] * 4 + names))
    assert called("a dddd ccc") == ([[1, 4, 3, 2]] * 4, ["dddd"] * 4)
    assert called("a dddd ccc") == ([[1, 4, 3, 2]] * 4, [])


def test_a_function_of_several_files_keeps_nothing_and_counts(run: Runner, store: MemoryStore, target: StepTarget) -> None:
    code = (
        "import volstream\n@volstream.step\ndef size(text): return len(text)\n"
        "@volstream.function(batch_size=2)\ndef f(files): return [{'n': size(file.read_text())} for file in files]"
    )
    files = [store.put("a", b"x"), store.put("b", b"yy")]
    for _ in range(2):
        assert counts(run(code, files, steps=target)) == {"step size computed": 2}


def test_values_beyond_the_limit_are_computed_at_each_call(run: Runner, store: MemoryStore, blobs: FolderOfBlobs) -> None:
    code = (
        "import volstream\n@volstream.step\ndef big(n): return b'x' * 1000\n"
        "def f(file):\n    for n in range(10): yield {'n': len(big(n))}"
    )
    small = StepTarget(blobs, 3500)
    files = [store.put("a", b"")]
    assert counts(run(code, files, steps=small)) == {"step big computed": 10, "step values not kept": 7}
    assert counts(run(code, files, steps=small)) == {"step big computed": 7, "step big reused": 3, "step values not kept": 7}


def test_a_moved_file_finds_its_values(
    run: Runner, store: MemoryStore, target: StepTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests import running

    code = (
        "import volstream\n@volstream.step\ndef size(text): return len(text)\ndef f(file): return {'n': size(file.read_text())}"
    )
    run(code, [store.put("old", b"abc")], steps=target)
    planned = running.planned

    def moved(files: Sequence[Any]) -> pa.RecordBatch:
        rows = planned(files)
        return rows.set_column(rows.schema.get_field_index("old_path"), "old_path", pa.array(["old"]))

    monkeypatch.setattr(running, "planned", moved)
    assert counts(run(code, [store.put("new", b"abc")], steps=target)) == {"step size reused": 1}


def test_a_value_is_a_copy_each_time(run: Runner, store: MemoryStore, target: StepTarget) -> None:
    code = (
        "import volstream\n@volstream.step\ndef box(x): return {'items': [x]}\n"
        "def f(file):\n    first = box(1)\n    first['items'].append(2)\n    return {'n': len(box(1)['items'])}"
    )
    for _ in range(2):
        assert run(code, [store.put("a", b"")], steps=target)["result"].to_pylist() == [{"n": 1}]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "@volstream.step\ndef g(x): return object()\ndef f(file): g(1)",
            "The value of the step g has a value of type object, which cannot be kept.",
        ),
        ("@volstream.step\ndef g(x): return 1\ndef f(file): g(file)", "Pass its content, such as file.read_bytes()."),
        ("@volstream.step(batch_size=2)\ndef g(x): return [1]\ndef f(file): g([1, 2])", "returned 1 values for 2 items"),
        ("@volstream.step(batch_size=2)\ndef g(x): return 1\ndef f(file): g([1, 2])", "returned a value of type int, not a list"),
        (
            "@volstream.step(batch_size=2)\ndef g(x): return [1]\ndef f(file): g('ab')",
            "takes a list as its first argument, not a value of type str",
        ),
        ("def f(file):\n    @volstream.step\n    def g(x): return 1\n    g(1)", "no def at the top of a file"),
        ("class A:\n    @volstream.step\n    def g(self): return 1\ndef f(file): A().g()", "is a method of A, which is neither"),
    ],
)
def test_what_cannot_be_kept_fails_with_a_reason(
    run: Runner, store: MemoryStore, target: StepTarget, body: str, said: str
) -> None:
    table = run(f"import volstream\n{body}", [store.put("a", b"")], steps=target)
    [(kind, message)] = failed(table).values()
    assert kind is FailureKind.RAISED
    assert said in message


def test_outside_of_a_job_a_step_is_a_plain_call() -> None:
    import volstream

    @volstream.step
    def box(value: object) -> object:
        return value

    value = object()
    assert box(value) is value

    @volstream.step(batch_size=2)
    def sizes(texts: list[str]) -> list[int]:
        assert len(texts) <= 2
        return [len(text) for text in texts]

    assert sizes(["a", "bb", "ccc"]) == [1, 2, 3]


def test_a_step_in_a_program_is_told_by_what_it_is_made_of() -> None:
    import volstream

    def made(number: int) -> Any:
        @volstream.step
        def embed(text: str) -> int:
            return len(text) + number

        def f(file: Any) -> Any:
            return {"n": embed(file.read_text())}

        return f

    def code(function: Any) -> str:
        loaded: Any = pickle.loads(source_of(archive_of(function)).pickled)
        return str(next(cell.cell_contents for cell in loaded.__closure__).pickled_code)

    assert code(made(1)) == code(made(1)) != ""
    assert code(made(1)) != code(made(2))
