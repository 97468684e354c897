from __future__ import annotations

from volstream.functions.schema import PROVENANCE
from volstream.tables.delta.ownership import INCIDENTAL


def test_all_but_the_path_of_a_rows_provenance_is_incidental() -> None:
    assert {*PROVENANCE.names} - INCIDENTAL == {"_file_path"}
    assert {*PROVENANCE.names} > INCIDENTAL
