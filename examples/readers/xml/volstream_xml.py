"""Rows of an XML file: the elements with one tag. Their children and attributes are columns, as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO
from xml.etree import ElementTree

import pyarrow as pa

#: Rows of a batch.
_ROWS = 5000


def read(content: BinaryIO, options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yields the elements with the tag ``row``. What is nested in their children is JSON.

    Raises:
        ValueError: it is no XML, or the tag is missing among the options.
    """
    tag = options.get("row")
    if tag is None or len(options) > 1:
        raise ValueError("it has the option row, and no other: the tag of the elements that are rows")
    rows: list[Mapping[str, Any]] = []
    try:
        parents: list[ElementTree.Element] = []
        for event, element in ElementTree.iterparse(content, events=("start", "end")):
            if event == "start":
                parents.append(element)
                continue
            parents.pop()
            inside = any(_name(parent.tag) == tag for parent in parents)
            if _name(element.tag) == tag and not inside:
                value = _value(element)
                rows.append(value if isinstance(value, dict) else {tag: value})
            if parents and not inside:
                parents[-1].remove(element)
            if len(rows) >= _ROWS:
                yield _batch(rows)
                rows = []
    except ElementTree.ParseError as error:
        raise ValueError(str(error)) from None
    if rows:
        yield _batch(rows)


def _batch(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.RecordBatch.from_arrays([pa.array([_text(row.get(name)) for row in rows], pa.string()) for name in names], names)


def _value(element: ElementTree.Element) -> Any:
    """Returns the text of an element; a dict if it has attributes or children, which are lists if they repeat."""
    text = (element.text or "").strip() or None
    fields: dict[str, Any] = {_name(name): value for name, value in element.attrib.items()}
    for child in element:
        name, value = _name(child.tag), _value(child)
        if name in fields:
            fields[name] = [*(fields[name] if isinstance(fields[name], list) else [fields[name]]), value]
        else:
            fields[name] = value
    if not fields:
        return text
    return fields if text is None else {**fields, "_text": text}


def _name(tag: str) -> str:
    """Returns a tag without its namespace."""
    return tag.rpartition("}")[2]


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
