"""The cost of calls: time, and memory at its peak."""

from __future__ import annotations

import pytest

from tests.memory import MemoryStore
from tests.running import BATCH, Runner, run, store
from volstream.functions.call import measured

__all__ = ["run", "store"]

#: Needs as many MiB as the file says, and time.
NEEDS = (
    "import time\n"
    "def f(file):\n"
    "    used = bytearray(b'x') * (int(file.read_text()) << 20)\n"
    "    time.sleep(0.02)\n"
    "    if len(used) > 60 << 20:\n        raise ValueError('large')\n"
    "    return {'n': 1}\n"
)


def test_the_peak_of_each_call_is_measured_even_if_an_earlier_one_freed_as_much() -> None:
    peaks = []
    for size in (40, 20, 0, 30):
        with measured(memory=True) as cost:
            del_me = bytearray(b"x") * (size << 20)
            del del_me
        assert cost.seconds is not None
        if cost.memory is None:
            pytest.skip("a process may not reset its peak here")
        peaks.append(cost.memory >> 20)
    assert all(abs(peak - size) <= 4 for peak, size in zip(peaks, (40, 20, 0, 30), strict=True)), peaks


def test_a_block_that_raises_is_measured_and_memory_only_on_demand() -> None:
    with pytest.raises(ZeroDivisionError), measured(memory=False) as cost:
        raise ZeroDivisionError
    assert cost.seconds is not None
    assert cost.memory is None


def test_the_cost_of_a_file_is_staged_also_if_it_fails(run: Runner, store: MemoryStore) -> None:
    table = run(NEEDS, [store.put("a", b"50"), store.put("b", b"70")], measures=True)
    assert min(table["seconds"].to_pylist()) >= 0.02
    known = [size >> 20 for size in table["memory"].to_pylist() if size is not None]
    assert all(abs(size - needed) <= 4 for size, needed in zip(known, (50, 70), strict=False)), known


def test_files_of_one_call_share_its_time(run: Runner, store: MemoryStore) -> None:
    code = f"import time\n{BATCH}    time.sleep(0.04)\n    return [{{'n': 1}} for _ in files]\n"
    first, second = run(code, [store.put("a", b""), store.put("b", b"")], measures=True)["seconds"].to_pylist()
    assert first == second >= 0.02


def test_nothing_is_measured_in_a_job(run: Runner, store: MemoryStore) -> None:
    table = run("def f(file):\n    return [{'n': 1}, {'n': 2}]\n", [store.put("a", b"")])
    assert (table["seconds"].to_pylist(), table["memory"].to_pylist()) == ([None, None], [None, None])


def test_arrow_rows_carry_the_cost_once(run: Runner, store: MemoryStore) -> None:
    code = "import pyarrow as pa\ndef f(file):\n    return pa.table({'n': pa.array([1, 2, 3])})\n"
    table = run(code, [store.put("a", b"")], measures=True)
    assert [one is not None for one in table["seconds"].to_pylist()] == [True, False, False]
    assert table["rows"].to_pylist() == [3, None, None]
