"""Random files of text, in any container: what was written is in the rows, or rescued, or the file is rejected."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from typing import Any, TypeAlias

import pytest

from tests.loading import Files
from volstream.functions.rejection import FileRejectedError

#: The values of a row by name, as they were written; NULLs are left out.
Row: TypeAlias = dict[str, Any]

NAMES = ("a", "b", "c")

#: Of csv files, and of strings in json files.
TEXTS = [
    *("", "x", "ü€😀", " x ", "a,b", 'a "quoted" word', '"', '""', "two\nlines", "two\r\nlines", "\ta", ";", "#", "\\", "null"),
    *("1", "-2", "007", "+7", " 7 ", "1.50", "1e3", "9223372036854775808", "9007199254740993", "NaN", "true", "2024-02-29"),
    *("2024-02-30", "0000-01-01", "\ufeff", "\u2028", "\x0b", "\x1c", "\x85", "'", "{}", "[1]", "x" * 300),
]

#: How a column of text has values of json.
WRITTEN: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}

KINDS = ["STRING", "STRING", "BIGINT", "DOUBLE", "DATE", "BOOLEAN"]


class Case:
    """A random file: its text, and what it says."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.is_damaged = False
        self.columns = {name: self.chance.choice(KINDS) for name in NAMES[: self.chance.randint(1, 3)]}
        self.options = {"new_columns": "rescue", "inferred": self.chance.choice(["", ",".join(self.columns)])}

    def some(self, most: int = 3) -> range:
        return range(self.chance.randint(0, most))

    def csv(self) -> tuple[bytes, list[Row]]:
        end, delimiter = (
            self.chance.choice(["\n", "\n", "\r\n", "\r"]),
            self.options.setdefault("delimiter", self.chance.choice(",;\t|")),
        )
        encoding = self.options.setdefault("encoding", self.chance.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le"]))
        self.options.setdefault("skip_rows", "0")
        lines, rows = ["" for _ in self.some()], list[Row]()
        lines.append(delimiter.join(self.columns))
        for _ in self.some(8):
            lines += ["" for _ in self.some(1)]
            values = [self.chance.choice([None, *TEXTS]) for _ in range(self.chance.choice([len(self.columns), *range(1, 6)]))]
            written = delimiter.join(self.csv_value(value, delimiter) for value in values)
            lines.append(written)
            names = [*self.columns, *(f"_c{number}" for number in range(len(self.columns), 5))]
            if written:  # else it is an empty line
                rows.append({name: value for name, value in zip(names, values, strict=False) if value is not None})
        return (end.join(lines) + end * self.chance.choice([0, 1, 1, 3])).encode(encoding), rows

    def csv_value(self, value: str | None, delimiter: str) -> str:
        if value is None:
            return ""
        is_plain = value and value[0] != '"' and not set(value) & {delimiter, "\n", "\r"}
        return value if is_plain and self.chance.random() < 0.7 else '"' + value.replace('"', '""') + '"'

    def json_value(self, depth: int = 0) -> Any:
        if depth < 2 and self.chance.random() < 0.2:
            items = [self.json_value(depth + 1) for _ in self.some()]
            return items if self.chance.random() < 0.5 else {f"k{at}": item for at, item in enumerate(items)}
        return self.chance.choice([None, True, 0, -3, 2**53 + 1, 2**70, 1.5, -0.1, 1e30, *self.chance.choices(TEXTS, k=4)])

    def json(self) -> tuple[bytes, list[Row]]:
        names = [*NAMES, "A", "B", "_file_path", "d e", "d_e", "É"]
        records: list[Any] = [
            {name: self.json_value() for name in self.chance.sample(names, self.chance.randint(0, 5))} for _ in self.some(8)
        ]
        rows = [{name: value for name, value in record.items() if value is not None} for record in records]
        ascii_only, blank = self.chance.random() < 0.5, self.chance.choice(["", " ", "\n", "\r\n\t"])
        written = [json.dumps(one, ensure_ascii=ascii_only, indent=self.chance.choice([None, None, 1])) for one in records]
        match self.chance.choice(["lines", "array", "records", "joined"]):
            case "lines":
                written = [json.dumps(one, ensure_ascii=ascii_only) for one in records]
                for broken in ["{", '{"a": 1', "nonsense", '"text"', "7", '{"a": 1}}', "[{}, 1]x"]:
                    if self.chance.random() < 0.1 and records:
                        written.insert(at := self.chance.randint(1, len(written)), broken)
                        rows.insert(at, {"_corrupt_record": broken})
                text = "".join(f"{one}{self.chance.choice(chr(10) * 3)}{blank if chr(10) in blank else ''}\n" for one in written)
            case "array":
                text = f"{blank}[{blank}" + f"{blank},".join(written) + f"]{blank}"
            case "joined":
                text = blank.join(written)
            case _:
                self.options["records"] = "x.y"
                text = f'{{"v": [1],{blank}"x"{blank}:{{"y":{blank}[' + ",".join(written) + ']}, "z": "]"}' + blank
        return text.encode(), rows

    def file(self) -> tuple[str, bytes, list[Row]]:
        """The name, the content and the rows of the file."""
        kind = self.chance.choice(["csv", "json"])
        make: Callable[[], tuple[bytes, list[Row]]] = getattr(self, kind)
        self.options["format"] = kind
        content, rows = make()
        match self.chance.choice(["plain", "plain", "gz", "zip", "tar", "tar.gz"]):
            case "plain":
                return f"x.{kind}", content, rows
            case "gz":
                cut = self.chance.randint(0, len(content))
                members = [gzip.compress(content[:cut]), gzip.compress(content[cut:])]
                return f"x.{kind}.gz", self.damaged(b"".join(members), len(members[0]) + 1, twice="whole"), rows
            case container:
                entries = {f"0.{kind}": content, "_0": b"?"}
                rows = [{**row, "_entry_path": f"0.{kind}"} for row in rows]
                if "records" not in self.options:
                    for number in self.some(2):
                        more, others = make()
                        if "records" in self.options:  # of all entries, or of none
                            del self.options["records"]
                            break
                        entries[name := f"{number + 1}.{kind}"] = more
                        rows += [{**row, "_entry_path": name} for row in others]
                content = (zipped if container == "zip" else tarred)(entries)
                is_gz = container == "tar.gz"
                return "x.zip", self.damaged(gzip.compress(content) if is_gz else content, 20 if is_gz else 513), rows

    def damaged(self, content: bytes, shown: int, *, twice: str = "twice") -> bytes:
        """What a container has become.

        Args:
            shown: so many bytes show what it is, and that there is more.
            twice: what is tried instead of two of it, if these are as good as one.
        """
        how = self.chance.choice([*["whole"] * 6, "zeros", "cut", "more", twice])
        self.is_damaged = how not in ("whole", "zeros")
        match how:
            case "zeros":
                return content + bytes(self.chance.choice([1, 512, 2000]))
            case "cut":
                return content[: self.chance.randint(shown, max(shown, len(content) - 1))]
            case "more":
                return content + bytes(self.chance.randrange(256) for _ in range(self.chance.randint(1, 600)))
            case "twice":
                return content + content
            case _:
                return content


def zipped(entries: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return target.getvalue()


def tarred(entries: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def accounts(row: Mapping[str, Any], written: Row, columns: Mapping[str, str], inferred: str) -> bool:
    """True if each value of a row as it was written is in its column, or rescued, and there is nothing else."""
    rescued: Row = json.loads(row.get("_rescued_data") or "{}")
    columns_left = {name for name in columns if row[name] is not None}
    for name, value in written.items():
        plain = _plain(name)
        kept = [key for key in (name, *rescued) if key in rescued and _plain(key) == plain and _same(rescued[key], value)]
        if kept:
            del rescued[kept[0]]
        elif plain in columns_left and _reads_as(row[plain], value, columns[plain], inferred):
            columns_left.remove(plain)
        elif name != "_entry_path" or row[name] != value:
            return False
    return not rescued and not columns_left


def _plain(name: str) -> str:
    """The name of the column to which a name belongs."""
    return name.replace(" ", "_").lower()


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one) == json.dumps(other)


def _reads_as(value: Any, written: Any, kind: str, inferred: str) -> bool:
    """True if a value of a column says what was written."""
    if kind == "STRING":
        return bool(value == (written if isinstance(written, str) else json.dumps(written, **WRITTEN)))
    text = written.strip() if isinstance(written, str) else json.dumps(written)
    if inferred and isinstance(written, str) and kind in ("BIGINT", "DOUBLE") and text in ("007", "+7"):
        return False
    with suppress(ValueError):
        match kind:
            case "BIGINT":
                return bool(value == int(text))
            case "DOUBLE":  # NaN is not itself
                return str(value) == str(float(text))
            case "BOOLEAN":
                return text == str(value).lower()
            case _:
                return bool(value == date.fromisoformat(text))
    return False


def check(files: Files, seed: int) -> bool:
    """Loads a random file; returns whether it was rejected."""
    print("seed", seed)  # noqa: T201  # shown if the test fails
    case = Case(seed)
    name, content, written = case.file()
    ddl = ", ".join([*(f"{column} {kind}" for column, kind in case.columns.items()), "_entry_path STRING"])
    try:
        rows = files.rows(name, content, ddl, **case.options)
    except FileRejectedError:
        if not case.is_damaged:
            raise
        return True
    shown = (name, case.columns, case.options, rows, written)
    assert len(rows) == len(written), shown
    left = list(rows)
    for row in written:
        found = next((one for one in left if accounts(one, row, case.columns, case.options["inferred"])), None)
        assert found is not None, (row, *shown)
        left.remove(found)
    return False


@pytest.mark.parametrize("first", [0, *(pytest.param(number, marks=pytest.mark.long) for number in range(1000, 20_000, 1000))])
def test_what_was_written_is_loaded_or_rescued_or_the_file_is_rejected(files: Files, first: int) -> None:
    rejected = sum(check(files, seed) for seed in range(first, first + (1000 if first else 150)))
    assert rejected < (250 if first else 40), "most files are whole"
