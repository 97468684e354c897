"""How a type may differ between versions of a table, and SQL that makes older values newer ones. Types are Delta's JSON. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from volstream.sql.text import quote_column, type_of

#: Metadata of a column or field: the number by which its values stay known under another name.
ID = "delta.columnMapping.id"

#: Metadata of a column: its name in data files, which stays, too. Where columns are not mapped, it is the column's name.
PHYSICAL = "delta.columnMapping.physicalName"

#: Types that a type can be widened to; to decimals see :func:`_is_wider`.
_WIDER = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}

#: Digits that decimals need before the point to hold an integer, by Delta.
_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}


def reads(new: Any, old: Any) -> bool:
    """True if Delta reads values of an older type as the newer one: they are the same, but fields may have been added."""
    return _fits(new, old, lambda now, then: bool(now == then), named=True)


def holds(new: Any, old: Any) -> bool:
    """True if a newer type has a value for each of an older one: fields may also have been renamed, and types widened."""
    return _fits(new, old, _is_wider, named=False)


def converted(value: str, new: Any, old: Any) -> str:
    """Returns SQL that converts a value of an older type to a newer one that :func:`holds` it. Added fields are NULL."""
    if reads(new, old) and reads(old, new):
        return value
    if isinstance(new, str):
        return f"CAST({value} AS {type_of(new)})"
    match new["type"]:
        case "array":
            return f"transform({value}, e -> {converted('e', new['elementType'], old['elementType'])})"
        case "map":
            key, item = (converted(f"e.{part}", new[f"{part}Type"], old[f"{part}Type"]) for part in ("key", "value"))
            return f"map_from_entries(transform(map_entries({value}), e -> struct({key} AS key, {item} AS value)))"
    fields = []
    for field in new["fields"]:
        before = same_field(field, old["fields"])
        name = quote_column(field["name"])
        if before is None:
            fields.append(f"CAST(NULL AS {type_of(field['type'])}) AS {name}")
        else:
            former = f"{value}.{quote_column(before['name'])}"
            fields.append(f"{converted(former, field['type'], before['type'])} AS {name}")
    return f"CASE WHEN {value} IS NOT NULL THEN struct({', '.join(fields)}) END"


def numbered(kind: Any, newer: Any) -> Any:
    """Returns a type whose fields have the numbers that a newer version gives to the same names.

    Columns are numbered when their mapping is switched on. No column is renamed before, or in that commit.
    """
    if isinstance(kind, str) or isinstance(newer, str) or kind["type"] != newer["type"]:
        return kind
    if kind["type"] != "struct":
        parts = {part: numbered(kind[part], newer[part]) for part in ("elementType", "keyType", "valueType") if part in kind}
        return {**kind, **parts}
    later = {field["name"]: field for field in newer["fields"]}
    fields = []
    for field in kind["fields"]:
        now, own = later.get(field["name"]), field.get("metadata") or {}
        if now is not None and ID not in own:
            numbers = {key: value for key, value in (now.get("metadata") or {}).items() if key in (ID, PHYSICAL)}
            field = {**field, "type": numbered(field["type"], now["type"]), "metadata": {**own, **numbers}}
        fields.append(field)
    return {**kind, "fields": fields}


def same_field(field: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Returns the field of another version that has the same values: by number, or by name if one of them has no number."""
    number = field.get("metadata", {}).get(ID)
    for other in others:
        its = other.get("metadata", {}).get(ID)
        if its == number if None not in (its, number) else other["name"] == field["name"]:
            return other
    return None


def _fits(new: Any, old: Any, leaf: Callable[[str, str], bool], *, named: bool) -> bool:
    if isinstance(new, str) or isinstance(old, str):
        return isinstance(new, str) and isinstance(old, str) and leaf(new, old)
    if new["type"] != old["type"]:
        return False
    if new["type"] != "struct":
        parts = [part for part in ("elementType", "keyType", "valueType") if part in new]
        return all(_fits(new[part], old[part], leaf, named=named) for part in parts)
    for field in old["fields"]:
        now = same_field(field, new["fields"])
        if now is None or (named and now["name"] != field["name"]):
            return False
        if not _fits(now["type"], field["type"], leaf, named=named):
            return False
    return True


def _is_wider(new: str, old: str) -> bool:
    if new == old or new in _WIDER.get(old, ()):
        return True
    now, then = (re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind) for kind in (new, old))
    if now is None or not (then or old in _DIGITS):
        return False
    whole, scale = (int(then[1]) - int(then[2]), int(then[2])) if then else (_DIGITS[old], 0)
    return int(now[1]) - int(now[2]) >= whole and int(now[2]) >= scale
