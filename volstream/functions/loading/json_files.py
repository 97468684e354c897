"""Rows of json files: objects, one per line, one after another, or in arrays.

PyArrow's reader rejects a whole block for one broken line, one value of another type or one repeated key. So
these rows are parsed by the standard library, some thousand at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from volstream.base.model.names import folded
from volstream.base.model.units import format_size
from volstream.functions.loading.columns import Chunk, JsonColumn, column_name
from volstream.functions.loading.content import MAX_RECORD_BYTES, Part, texts
from volstream.functions.loading.options import LoadOptions
from volstream.functions.loading.texts import DECODER
from volstream.functions.rejection import FileRejectedError
from volstream.functions.types.values import as_json

#: Rows in memory at a time, and their approximate number of characters.
_ROWS, _CHARACTERS = 5000, MAX_RECORD_BYTES

#: Maximum number of keys in the records in memory: each is a column of all these records.
_MAX_KEYS = 10_000

#: The name under which text that is not a JSON object is rescued; Spark's name.
CORRUPT = "_corrupt_record"

_BLANKS = " \t\r\n"


class _Corrupt(str):
    """Text in the place of a record."""


def chunks(source: Part, options: LoadOptions) -> Iterator[Chunk]:
    """Yields the rows of a json file: its objects, or the objects at the path ``records`` in them.

    A line that is not a JSON object is a row whose text is rescued. Between objects that span several lines
    or are in an array, nothing marks the end of a broken one, so the file is rejected.

    Raises:
        FileRejectedError: it is not a json file.
    """
    read = _Blocks(texts(source, options.encoding))
    records = _records(read) if options.records is None else _from_values(read, options.records.split("."))
    while group := list(_limited(records, read, read.characters + _CHARACTERS)):
        yield _chunk(group)


class _Blocks(Iterator[str]):
    """Blocks of text, with the number of characters read so far."""

    def __init__(self, blocks: Iterator[str]) -> None:
        self._blocks = blocks
        self.characters = 0

    def __next__(self) -> str:
        block = next(self._blocks)
        self.characters += len(block)
        return block


def _limited(records: Iterator[dict[str, Any] | _Corrupt], read: _Blocks, characters: int) -> Iterator[dict[str, Any] | _Corrupt]:
    """Yields up to :data:`_ROWS` records, until this many characters have been read."""
    for record in islice(records, _ROWS):
        yield record
        if read.characters >= characters:
            return


def _chunk(group: list[dict[str, Any] | _Corrupt]) -> Chunk:
    rows = [{} if isinstance(record, _Corrupt) else record for record in group]
    rescued: dict[int, dict[str, Any]] = {
        at: {CORRUPT: str(record)} for at, record in enumerate(group) if isinstance(record, _Corrupt)
    }
    names = dict.fromkeys(chain.from_iterable(rows))
    if len(names) > _MAX_KEYS:
        raise FileRejectedError(
            f"The records of the file have more than {_MAX_KEYS:,} different keys: they are data, not columns. "
            "Exclude the file by a condition, or write its keys as values."
        )
    spellings: dict[str, str] = {}
    for name in names:
        spellings.setdefault(folded(column_name(name)), name)
    if len(spellings) < len(names):
        rows = [_respelled(row, spellings, rescued.setdefault(at, {})) for at, row in enumerate(rows)]
    columns = [JsonColumn(name, [row.get(name) for row in rows]) for name in spellings.values()]
    return Chunk(len(group), columns, {at: values for at, values in rescued.items() if values})


def _respelled(row: dict[str, Any], spellings: Mapping[str, str], rescued: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with one spelling per name.

    If the row has several, one with a value wins, and the others go to ``rescued``.
    """
    respelled: dict[str, Any] = {}
    named = [(spellings[folded(column_name(name))], name, value) for name, value in row.items()]
    for common, name, value in sorted(named, key=lambda item: item[0] != item[1]):
        if respelled.get(common) is None:
            respelled[common] = value
        elif value is not None:
            rescued[name] = value
    return respelled


def _records(blocks: Iterator[str]) -> Iterator[dict[str, Any] | _Corrupt]:
    head = ""
    for block in blocks:
        head += block
        if "\n" in head.lstrip(_BLANKS) or len(head) > MAX_RECORD_BYTES:
            break
    text = head.lstrip(_BLANKS)
    first = text.partition("\n")[0]
    content = chain([head], blocks)
    if first.startswith("[") or (first.startswith("{") and (len(first) > MAX_RECORD_BYTES or _is_cut(first) or _goes_on(text))):
        return _from_values(content, ())
    return chain.from_iterable(_from_line(line) for line in _lines(content))


def _goes_on(text: str) -> bool:
    """Returns whether one of the first lines begins an object that continues on the next lines. A broken
    object does not count."""
    at = 0
    while (end := text.find("\n", at)) >= 0:
        at = end - len(text[at:end].lstrip(_BLANKS))
        if text.startswith("{", at) and _is_cut(text[at:end]):
            try:
                while at < end:
                    _, at = DECODER.raw_decode(text, at)
                    at += len(text[at:]) - len(text[at:].lstrip(_BLANKS))
            except (ValueError, RecursionError):
                return False
            return True
        at = end + 1
    return False


def _is_cut(line: str) -> bool:
    """Returns whether a line ends within an object, which continues on the next line."""
    at, end = 0, len(line.rstrip(_BLANKS))
    try:
        while at < end:
            _, at = DECODER.raw_decode(line, at)
            at = end - len(line[at:end].lstrip(_BLANKS))
    except json.JSONDecodeError as error:
        return error.pos >= end
    except (ValueError, RecursionError):
        return False
    return False


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    tail = ""
    for block in blocks:
        *lines, tail = (tail + block).split("\n")
        yield from lines
        if len(tail) > MAX_RECORD_BYTES:
            raise _too_large()
    yield tail


def _from_line(line: str) -> Iterable[dict[str, Any] | _Corrupt]:
    if not line or line.isspace():
        return ()
    text, end = line.strip(_BLANKS), 0
    values: list[Any] = []
    try:
        while end < len(text):
            value, end = DECODER.raw_decode(text, end)
            values.append(value)
            while end < len(text) and text[end] in _BLANKS:
                end += 1
    except (ValueError, RecursionError):
        return (_Corrupt(text),)
    # Amazon Data Firehose writes one object after another. Otherwise there is one value per line.
    if len(values) > 1 and not all(isinstance(value, dict) for value in values):
        return (_Corrupt(text),)
    return [_record(item) for item in values[0]] if isinstance(values[0], list) else [_record(value) for value in values]


def _record(value: Any) -> dict[str, Any] | _Corrupt:
    return value if isinstance(value, dict) else _Corrupt(as_json(value))


def _from_values(blocks: Iterator[str], path: Sequence[str]) -> Iterator[dict[str, Any] | _Corrupt]:
    """Yields the objects at a path in a text that consists of objects and arrays of objects."""
    text = _Buffer(blocks)
    while (character := text.character()) is not None:
        yield from _elements(text, path) if character == "[" else _at_path(text, path)


def _elements(text: _Buffer, path: Sequence[str]) -> Iterator[dict[str, Any] | _Corrupt]:
    """Yields the objects at a path in the elements of the next array."""
    for _ in text.members("]", "the array does not end"):
        yield from _at_path(text, path)


def _at_path(text: _Buffer, path: Sequence[str]) -> Iterator[dict[str, Any] | _Corrupt]:
    """Yields the objects at a path in the next value. Raises FileRejectedError if it has no such path."""
    if not path:
        yield _record(text.value(DECODER.raw_decode))
        return
    begin, found = text.character(), False
    for _ in text.members("}", "the object does not end") if begin == "{" else ():
        key = text.value(DECODER.raw_decode)
        if text.character() != ":":
            raise text.broken("a colon is missing")
        text.skip()
        if key != path[0]:
            text.value(DECODER.raw_decode)
            continue
        found = True
        match text.character():
            case "[":
                yield from _elements(text, path[1:])
            case "n":
                text.value(DECODER.raw_decode)
            case _:
                yield from _at_path(text, path[1:])
    if not found:
        raise text.broken(f"an object has no {path[0]!r}, where the records are")


class _Buffer:
    """Text that is read on demand."""

    def __init__(self, blocks: Iterator[str]) -> None:
        self._blocks = blocks
        self._text = ""
        self._at = 0
        self._before = 0

    def character(self) -> str | None:
        """Returns the next character that is not white space, or None at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _BLANKS:
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                return None

    def skip(self) -> None:
        """Skips to the next character."""
        self._at += 1

    def members(self, end: str, endless: str) -> Iterator[None]:
        """Yields before each member of the next array or object. Raises FileRejectedError."""
        self.skip()
        is_next = True
        while (character := self.character()) != end:
            if character == "," and not is_next:
                is_next = True
                self.skip()
            elif character is None:
                raise self.broken(endless)
            elif is_next:
                is_next = False
                yield
            else:
                raise self.broken("a comma is missing")
        self.skip()

    def value(self, decode: Callable[[str, int], tuple[Any, int]]) -> Any:
        """Returns the next value, after blanks. Raises FileRejectedError."""
        self.character()
        while True:
            try:
                value, end = decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # The rest of the value may be in the next block.
                if len(self._text) - self._at > MAX_RECORD_BYTES:
                    raise _too_large() from None
                if not self._more():
                    raise self.broken(error.msg, error.pos) from None
                continue
            except RecursionError:
                raise self.broken("a value is nested too deeply") from None
            except ValueError:  # Python's limit, against attacks
                raise self.broken("a number has too many digits") from None
            # A number at the end of the block may continue in the next block, also after a point or an
            # exponent's sign.
            rest = self._text[end : end + 3]
            if len(rest) < 3 and not rest.strip(".eE+-") and self._more():
                continue
            self._at = end
            return value

    def broken(self, reason: str, at: int | None = None) -> FileRejectedError:
        """Returns the rejection for an error at this position."""
        place = self._before + (self._at if at is None else at)
        return FileRejectedError(f"The file cannot be read as json: {reason} (character {place}).")

    def _more(self) -> bool:
        block = next(self._blocks, None)
        if block is None:
            return False
        self._before += self._at
        self._text = self._text[self._at :] + block
        self._at = 0
        return True


def _too_large() -> FileRejectedError:
    return FileRejectedError(f"A record of the file is larger than {format_size(MAX_RECORD_BYTES)}.")
