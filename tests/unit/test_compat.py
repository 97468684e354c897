"""The snake_case surface, without Spark: settings, and what is rejected before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from volstream.compat import Session
from volstream.compat.session import home_settings
from volstream.errors import UserError


def test_account_settings_are_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    account = {
        "username": "u",
        "password": "secret",
        "service": "s",
        "instance": "i",
        "workspace": "w",
        "vcluster": "default",
        "protocol": "https",
        "schema": "PUBLIC",
    }
    assert home_settings({**account, "home": tmp_path}) == {"home": tmp_path}
    with Session.builder.configs(account).config("home", tmp_path).create() as session:
        assert session.native.home.settings.home == tmp_path
    said = capsys.readouterr().err
    assert "secret" not in said
    assert "warning" not in said


def test_an_open_session_is_reused(tmp_path: Path) -> None:
    builder = Session.builder.configs({"home": tmp_path, "username": "u"})
    with builder.create() as session:
        assert builder.get_or_create().native is session.native


@pytest.mark.parametrize(
    ("settings", "said"), [({"schema": "sales"}, "First: CREATE SCHEMA sales"), ({"core": "1"}, "Did you mean 'cores'")]
)
def test_a_setting_that_does_not_fit_is_answered_with_what_to_do(tmp_path: Path, settings: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Session.builder.configs(settings).config("home", tmp_path).create()


@pytest.mark.parametrize(
    ("name", "said"), [("file", "Copy files to the location of a volume"), ("use_scheme", "Did you mean 'use_schema'")]
)
def test_what_a_session_does_not_have_is_answered_with_what_it_has(tmp_path: Path, name: str, said: str) -> None:
    with Session.builder.config("home", tmp_path).create() as session, pytest.raises(AttributeError, match=said):
        getattr(session, name)
