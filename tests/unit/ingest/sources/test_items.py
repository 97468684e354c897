"""Items as rows."""

from __future__ import annotations

from datetime import timedelta

from volstream.ingest.sources.events import stored


def test_an_item_is_its_key_and_json_with_durations_as_in_iso_8601() -> None:
    assert stored({"id": 7, "took": timedelta(seconds=90)}, "id") == ("7", '{"id":7,"took":"P0DT0H1M30S"}')
