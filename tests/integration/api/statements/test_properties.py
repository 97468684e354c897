"""Options that SQL has no clause for."""

from __future__ import annotations

from pathlib import Path

import pytest

from volstream.api.objects.sql import rows as rows_of
from volstream.api.session import Session
from volstream.base import config
from volstream.errors import InvalidValueError


def test_a_volume_takes_the_options_that_have_no_clause_as_properties(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    said = f"CREATE VOLUME v LOCATION '{tmp_path / 'files'}' MAX_REMOVALS '20%' "
    with Session(config.load(tmp_path / "home")) as session:
        for option, remedy in (("'recursive' = 'true'", "ignores, inventory, expect_every"), ("'ignore' = 'x'", "'ignores'")):
            with pytest.raises(InvalidValueError) as caught:
                rows_of(session, f"{said}PROPERTIES ({option})")
            assert remedy in caught.value.remedy
        rows_of(session, f"{said}PROPERTIES ('ignores' = '*.tmp', 'expect_every' = '2h')")
        volume = session.volumes.get("v")
        assert (volume.ignores, volume.expect_every, volume.max_removals) == (("*.tmp",), 7200.0, "20%")
        described = {row["property"]: row["value"] for row in rows_of(session, "DESCRIBE VOLUME v")[1]}
        assert (described["ignores"], described["expect_every"]) == ("*.tmp", "2h")
