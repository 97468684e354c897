"""Edits of a program with a function ``f``: pairs of programs that do something else, and pairs that do the same.

``python -m tests.edits`` prints the fingerprints of all of them, as JSON, and what ``f`` returns.
"""

from __future__ import annotations

import json
import sys
from typing import Any

#: With ``#`` for what is edited: 1 becomes 2.
_BY_NUMBER = {
    "constant": "def f(x): return #",
    "constant in a tuple": "def f(x): return (0, #)",
    "constant in a nested tuple": "def f(x): return ((0, #), 3)",
    "constant in a comparison": "def f(x): return 1 in {#, 9}",
    "default": "def f(x, n=#): return n",
    "keyword default": "def f(x, *, n=#): return n",
    "default that is a list": "def f(x, n=[#]): return n",
    "lambda": "f = lambda x: #",
    "inner function": "def f(x):\n    def g(): return #\n    return g()",
    "comprehension": "def f(x): return [n + # for n in (1, 2)]",
    "generator": "def f(x): return list(n + # for n in (1, 2))",
    "walrus": "def f(x): return [(n := #), n]",
    "match": "def f(x):\n    match 2:\n        case #: return 'a'\n        case _: return 'b'",
    "exception handler": "def f(x):\n    try: raise ValueError\n    except ValueError: return #",
    "finally": "def f(x):\n    y = []\n    try: y.append(0)\n    finally: y.append(#)\n    return y",
    "f-string": "def f(x): return f'{3}-#'",
    "format of an f-string": "def f(x): return f'{3:0#d}'",
    "global": "N = #\ndef f(x): return N",
    "global of a global": "N = #\ndef g(): return N\ndef f(x): return g()",
    "global in a comprehension": "N = #\ndef f(x): return [N for _ in (1,)]",
    "global in a lambda": "N = #\ndef f(x): return (lambda: N)()",
    "closure": "def make(n):\n    def f(x): return n\n    return f\nf = make(#)",
    "closure of a closure": "def make(n):\n    def g(): return n\n    def f(x): return g()\n    return f\nf = make(#)",
    "recursion": "def f(x, n=3): return # if n == 0 else f(x, n - 1)",
    "mutual recursion": "def g(n): return # if n == 0 else h(n - 1)\ndef h(n): return g(n)\ndef f(x): return g(2)",
    "decorator": "def twice(g): return lambda x: g(x) * #\n@twice\ndef f(x): return 3",
    "decorator's argument": "def by(n): return lambda g: lambda x: g(x) * n\n@by(#)\ndef f(x): return 3",
    "wrapped": "import functools\ndef by(g):\n    @functools.wraps(g)\n    def h(x): return g(x)\n    return h\n@by\ndef f(x): return #",
    "partial": "import functools\ndef g(n, x): return n\nf = functools.partial(g, #)",
    "partial's keyword": "import functools\ndef g(x, n=0): return n\nf = functools.partial(g, n=#)",
    "cached function": "import functools\n@functools.cache\ndef g(): return #\ndef f(x): return g()",
    "function's attribute": "def f(x): return f.n\nf.n = #",
    "method": "class C:\n    def go(self): return #\ndef f(x): return C().go()",
    "class attribute": "class C:\n    n = #\ndef f(x): return C.n",
    "instance": "class C:\n    def __init__(self, n): self.n = n\nc = C(#)\ndef f(x): return c.n",
    "instance's default": "class C:\n    def __init__(self, n=#): self.n = n\ndef f(x): return C().n",
    "property": "class C:\n    @property\n    def n(self): return #\ndef f(x): return C().n",
    "setter": "class C:\n    @property\n    def n(self): return self.m\n    @n.setter\n    def n(self, v): self.m = v + #\n"
    "def f(x):\n    c = C()\n    c.n = 0\n    return c.n",
    "static method": "class C:\n    @staticmethod\n    def n(): return #\ndef f(x): return C.n()",
    "class method": "class C:\n    @classmethod\n    def n(cls): return #\ndef f(x): return C.n()",
    "base class": "class B:\n    def go(self): return #\nclass C(B): pass\ndef f(x): return C().go()",
    "base of a base": "class A:\n    def go(self): return #\nclass B(A): pass\nclass C(B): pass\ndef f(x): return C().go()",
    "base's attribute": "class B:\n    n = #\nclass C(B): pass\ndef f(x): return C().n",
    "base by super": "class B:\n    def go(self): return #\nclass C(B):\n    def go(self): return super().go()\ndef f(x): return C().go()",
    "mixin": "class M:\n    def go(self): return #\nclass C(M, dict): pass\ndef f(x): return C().go()",
    "abstract base": "import abc\nclass B(abc.ABC):\n    @abc.abstractmethod\n    def go(self): return #\n"
    "class C(B):\n    def go(self): return super().go()\ndef f(x): return C().go()",
    "metaclass": "class M(type):\n    def go(cls): return #\nclass C(metaclass=M): pass\ndef f(x): return C.go()",
    "metaclass's call": "class M(type):\n    def __call__(cls): return #\nclass C(metaclass=M): pass\ndef f(x): return C()",
    "__init_subclass__": "class B:\n    def __init_subclass__(cls): cls.n = #\nclass C(B): pass\ndef f(x): return C.n",
    "__str__": "class C:\n    def __str__(self): return '#'\ndef f(x): return str(C())",
    "__repr__": "class C:\n    def __repr__(self): return '#'\ndef f(x): return repr(C())",
    "__format__": "class C:\n    def __format__(self, s): return '#'\ndef f(x): return f'{C()}'",
    "__eq__": "class C:\n    def __eq__(self, o): return o == #\n    __hash__ = None\ndef f(x): return C() == 2",
    "__hash__": "class C:\n    def __hash__(self): return #\ndef f(x): return hash(C())",
    "__len__": "class C:\n    def __len__(self): return #\ndef f(x): return len(C())",
    "__iter__": "class C:\n    def __iter__(self): return iter([#])\ndef f(x): return list(C())",
    "__getitem__": "class C:\n    def __getitem__(self, k): return #\ndef f(x): return C()[0]",
    "__getattr__": "class C:\n    def __getattr__(self, k): return #\ndef f(x): return C().any",
    "__contains__": "class C:\n    def __contains__(self, k): return k == #\ndef f(x): return 2 in C()",
    "__call__": "class C:\n    def __call__(self, x): return #\nf = C()",
    "__new__": "class C(int):\n    def __new__(cls): return int.__new__(cls, #)\ndef f(x): return int(C())",
    "__enter__": "class C:\n    def __enter__(self): return #\n    def __exit__(self, *a): pass\ndef f(x):\n    with C() as n: return n",
    "__add__": "class C:\n    def __add__(self, o): return #\ndef f(x): return C() + 0",
    "__bool__": "class C:\n    def __bool__(self): return # == 1\ndef f(x): return bool(C())",
    "__set_name__": "class D:\n    def __set_name__(self, o, n): self.n = #\nclass C:\n    d = D()\ndef f(x): return vars(C)['d'].n",
    "descriptor": "class D:\n    def __get__(self, o, t): return #\nclass C:\n    d = D()\ndef f(x): return C().d",
    "__slots__": "class C:\n    __slots__ = ('n',)\n    def __init__(self): self.n = #\ndef f(x): return C().n",
    "slot of an instance": "class C:\n    __slots__ = ('n',)\nc = C()\nc.n = #\ndef f(x): return c.n",
    "__post_init__": "import dataclasses\n@dataclasses.dataclass\nclass D:\n    a: int = 0\n    def __post_init__(self): self.b = #\n"
    "def f(x): return D().b",
    "dataclass's default": "import dataclasses\n@dataclasses.dataclass\nclass D:\n    a: int = #\ndef f(x): return D().a",
    "dataclass's factory": "import dataclasses\n@dataclasses.dataclass\nclass D:\n"
    "    a: list = dataclasses.field(default_factory=lambda: [#])\ndef f(x): return D().a",
    "dataclass's metadata": "import dataclasses\n@dataclasses.dataclass\nclass D:\n    a: int = dataclasses.field(default=0, metadata={'n': #})\n"
    "def f(x): return dataclasses.fields(D)[0].metadata['n']",
    "frozen instance": "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass D:\n    a: int\nd = D(#)\ndef f(x): return d.a",
    "named tuple's default": "import typing\nclass T(typing.NamedTuple):\n    a: int = #\ndef f(x): return T().a",
    "named tuple": "import collections\nT = collections.namedtuple('T', 'a')\nt = T(#)\ndef f(x): return t.a",
    "enum": "import enum\nclass E(enum.Enum):\n    A = #\ndef f(x): return E.A.value",
    "enum's method": "import enum\nclass E(enum.Enum):\n    A = 0\n    def go(self): return #\ndef f(x): return E.A.go()",
    "nested class": "class C:\n    class D:\n        n = #\ndef f(x): return C.D.n",
    "class in a function": "def f(x):\n    class C:\n        n = #\n    return C.n",
    "subclass of list": "class L(list): pass\nitems = L([#])\ndef f(x): return list(items)",
    "subclass of dict": "class D(dict):\n    def __missing__(self, k): return #\nitems = D()\ndef f(x): return items[0]",
    "list": "K = [0, #]\ndef f(x): return K",
    "dict": "K = {'a': #}\ndef f(x): return K",
    "dict's key": "K = {#: 'a'}\ndef f(x): return list(K)",
    "set": "K = {9, #}\ndef f(x): return sorted(K)",
    "frozen set": "K = frozenset([9, #])\ndef f(x): return sorted(K)",
    "set of tuples": "K = {(#, 'a'), (9, 'b')}\ndef f(x): return sorted(K)",
    "bytes": "K = b'#'\ndef f(x): return K.decode()",
    "byte array": "K = bytearray(b'#')\ndef f(x): return K.decode()",
    "float": "K = 0.#\ndef f(x): return K",
    "complex": "K = #j\ndef f(x): return str(K)",
    "large number": "K = 10 ** 5000 + #\ndef f(x): return K % 10",
    "decimal": "import decimal\nK = decimal.Decimal('0.#')\ndef f(x): return str(K)",
    "date": "import datetime\nK = datetime.date(2020, 1, #)\ndef f(x): return str(K)",
    "time zone": "import zoneinfo\nK = zoneinfo.ZoneInfo('Etc/GMT-#')\ndef f(x): return str(K)",
    "pattern": "import re\nK = re.compile('a{#}')\ndef f(x): return bool(K.fullmatch('aa'))",
    "flags of a pattern": "import re\nK = re.compile('A', #)\ndef f(x): return K.flags",
    "path": "import pathlib\nK = pathlib.Path('/#')\ndef f(x): return str(K)",
    "deque": "import collections\nK = collections.deque([#])\ndef f(x): return list(K)",
    "bounds of a deque": "import collections\nK = collections.deque([], #)\ndef f(x): return K.maxlen",
    "default dict": "import collections\nK = collections.defaultdict(lambda: #)\ndef f(x): return K[0]",
    "counter": "import collections\nK = collections.Counter(a=#)\ndef f(x): return K['a']",
    "namespace": "import types\nK = types.SimpleNamespace(n=#)\ndef f(x): return K.n",
    "slice": "K = slice(#)\ndef f(x): return [0, 1, 2][K]",
    "range": "K = range(#)\ndef f(x): return list(K)",
    "array": "import array\nK = array.array('i', [#])\ndef f(x): return K[0]",
    "numpy array": "import numpy\nK = numpy.array([[0, #]])\ndef f(x): return K.tolist()",
    "pandas frame": "import pandas\nK = pandas.DataFrame({'a': [#]})\ndef f(x): return K.to_dict('list')",
    "arrow table": "import pyarrow\nK = pyarrow.table({'a': [#]})\ndef f(x): return K.to_pydict()",
    "pydantic's default": "import pydantic\nclass M(pydantic.BaseModel):\n    a: int = #\ndef f(x): return M().a",
    "pydantic's bound": "import pydantic\nclass M(pydantic.BaseModel):\n    a: int = pydantic.Field(2, ge=#, validate_default=True)\n"
    "def f(x):\n    try: return M(a=1).a\n    except ValueError: return 'refused'",
    "pydantic's validator": "import pydantic\nclass M(pydantic.BaseModel):\n    a: int = 0\n"
    "    @pydantic.field_validator('a')\n    @classmethod\n    def check(cls, v): return v + #\ndef f(x): return M(a=0).a",
    "bound method": "class C:\n    def __init__(self, n): self.n = n\n    def go(self, x): return self.n\nf = C(#).go",
    "async function": "async def f(x): return #",
    "thread-local in a function": "import threading\ndef f(x):\n    held = threading.local()\n    held.n = #\n    return held.n",
    "module made by hand": "import types\nmod = types.ModuleType('mod')\nmod.n = #\ndef f(x): return mod.n",
    "method set from outside": "class C: pass\nC.go = lambda self: #\ndef f(x): return C().go()",
    "shared state in a cycle": "a = [#]\na.append(a)\ndef f(x): return a[1][0]",
    "reduced by itself": "class C:\n    def __init__(self, n): self.n = n\n    def __reduce__(self): return C, (self.n,)\n"
    "c = C(#)\ndef f(x): return c.n",
    "state of its own": "class C:\n    def __getstate__(self): return {'n': #}\n    def __setstate__(self, s): self.__dict__ = s\n"
    "c = C()\ndef f(x): return c.__getstate__()['n']",
}

#: Programs that do something else.
_BY_FORM = {
    "operator": ("def f(x): return 5 + 3", "def f(x): return 5 - 3"),
    "operator of variables": ("def f(x, a=5, b=3): return a + b", "def f(x, a=5, b=3): return a - b"),
    "type of a constant": ("def f(x): return repr(1)", "def f(x): return repr(1.0)"),
    "truth for a number": ("def f(x): return repr(True)", "def f(x): return repr(1)"),
    "sign of zero": ("def f(x): return repr(0.0)", "def f(x): return repr(-0.0)"),
    "text for bytes": ("K = '1'\ndef f(x): return repr(K)", "K = b'1'\ndef f(x): return repr(K)"),
    "tuple for a list": ("K = (1,)\ndef f(x): return repr(K)", "K = [1]\ndef f(x): return repr(K)"),
    "nested list": ("K = [[1], 2]\ndef f(x): return len(K)", "K = [[1, 2]]\ndef f(x): return len(K)"),
    "nested tuple": ("def f(x): return len(((1,), 2))", "def f(x): return len(((1, 2),))"),
    "nested dict": ("S = {'m': {'s': 1}, 't': 2}\ndef f(x): return S['m'].get('t')", "S = {'m': {'s': 1, 't': 2}}\ndef f(x): return S['m'].get('t')"),
    "boundary of texts": ("K = ['ab', 'c']\ndef f(x): return K[0]", "K = ['a', 'bc']\ndef f(x): return K[0]"),
    "order of a dict": ("D = {'a': 1, 'b': 2}\ndef f(x): return list(D)[0]", "D = {'b': 2, 'a': 1}\ndef f(x): return list(D)[0]"),
    "order of bases": (
        "class A:\n    n = 1\nclass B:\n    n = 2\nclass C(A, B): pass\ndef f(x): return C.n",
        "class A:\n    n = 1\nclass B:\n    n = 2\nclass C(B, A): pass\ndef f(x): return C.n",
    ),
    "another base": (
        "class A:\n    n = 1\nclass B:\n    n = 2\nclass C(A): pass\ndef f(x): return C.n",
        "class A:\n    n = 1\nclass B:\n    n = 2\nclass C(B): pass\ndef f(x): return C.n",
    ),
    "another function": ("import math\ng = math.floor\ndef f(x): return g(1.5)", "import math\ng = math.ceil\ndef f(x): return g(1.5)"),
    "another module": ("import json as m\ndef f(x): return m.__name__", "import csv as m\ndef f(x): return m.__name__"),
    "shared or equal": (
        "a = [0]\nK = [a, a]\ndef f(x):\n    import copy\n    k = copy.deepcopy(K)\n    k[0].append(1)\n    return k",
        "a = [0]\nK = [a, [0]]\ndef f(x):\n    import copy\n    k = copy.deepcopy(K)\n    k[0].append(1)\n    return k",
    ),
    "swapped values": ("A, B = 1, 2\ndef f(x): return A - B", "A, B = 2, 1\ndef f(x): return A - B"),
    "a method more": ("class C: pass\ndef f(x): return hasattr(C, 'go')", "class C:\n    def go(self): pass\ndef f(x): return hasattr(C, 'go')"),
    "annotation": ("def f(x) -> int: return sorted(map(str, f.__annotations__.values()))", "def f(x) -> str: return sorted(map(str, f.__annotations__.values()))"),
    "position only": ("def g(a, /, **k): return sorted(k)\ndef f(x): return g(1)", "def g(a, /, **k): return sorted(k) + [a]\ndef f(x): return g(1)"),
    "generator for a list": ("def f(x): return [1].__class__.__name__", "def f(x): return (n for n in [1]).__class__.__name__"),
    "cache": ("import functools\n@functools.lru_cache(1)\ndef g(): pass\ndef f(x): return g.cache_parameters()['maxsize']", "import functools\n@functools.lru_cache(2)\ndef g(): pass\ndef f(x): return g.cache_parameters()['maxsize']"),
}  # fmt: skip

#: Programs that do the same.
_SAME = {
    "comment": ("def f(x): return 1", "# so\n\ndef f(x):\n    return 1  # or so"),
    "unused variable of the program": ("def f(x): return 1", "N = 2\ndef f(x): return 1"),
    "unused function": ("def f(x): return 1", "def g(): return 2\ndef f(x): return 1"),
    "lines before a class": (
        "class C:\n    def go(self): return 1\ndef f(x): return C().go()",
        "\n\n\nclass C:\n\n    def go(self):\n        return 1\ndef f(x): return C().go()",
    ),
    "order of a set": ("K = {'a', 'b', 'c'}\ndef f(x): return sorted(K)", "K = {'c', 'b', 'a'}\ndef f(x): return sorted(K)"),
    "imported by the program": ("import os\ndef f(x): return os.sep", "import os, os.path, xml.dom.minidom\ndef f(x): return os.sep"),
}  # fmt: skip

DIFFERENT = {**{name: (one.replace("#", "1"), one.replace("#", "2")) for name, one in _BY_NUMBER.items()}, **_BY_FORM}


def _look(program: str) -> tuple[str, str]:
    """Returns the fingerprint of a program's function, and what the function returns."""
    import asyncio
    import inspect

    from volstream.functions.pickled import archive_of, source_of

    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, f"/tmp/{len(program)}.py", "exec"), names)  # noqa: S102  # of this file
    fingerprint = source_of(archive_of(names["f"])).fingerprint
    returned = names["f"](None)
    return fingerprint, repr(asyncio.run(returned) if inspect.iscoroutine(returned) else returned)


if __name__ == "__main__":
    found = {
        name: [_look(program) for program in pair]
        for name, pair in {**DIFFERENT, **{f"same: {name}": pair for name, pair in _SAME.items()}}.items()
    }
    json.dump(found, sys.stdout)
