"""``volstream console`` without a daemon, and what the command line does not import."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from volstream.api.session import Session
from volstream.base import config
from volstream.base.privacy import known_hosts, token_of, url_of
from volstream.cli.main import run


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with Session(config.load(tmp_path)) as session:
        session.volumes.list()  # makes the catalog
    return tmp_path


def test_without_a_daemon_the_command_says_how_to_start_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["console", "--print", "--home", str(home)]) == 3
    assert "Start one: volstream daemon." in capsys.readouterr().err


def test_the_daemon_of_another_spark_is_found_by_its_setting(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLSTREAM_SPARK_REMOTE", "sc://elsewhere:15002")
    assert run(["console", "--print", "--home", str(home)]) == 0
    assert capsys.readouterr().out.startswith("http://127.0.0.1:8642/?token=")


def test_the_command_line_of_the_browser_has_no_token(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VOLSTREAM_SPARK_REMOTE", "sc://elsewhere:15002")
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    assert run(["console", "--home", str(home)]) == 0
    page = home / "run" / "console.html"
    assert (tmp_path / "arguments").read_text() == f"{page.as_uri()}\n"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert f"token={token_of(config.load(home))}" in page.read_text()
    assert "is open in your browser" in capsys.readouterr().err


def test_a_token_is_made_once_for_the_user_only(tmp_path: Path) -> None:
    settings = config.load(tmp_path)
    token = token_of(settings)
    assert len(token) >= 40
    assert token_of(settings) == token
    file = tmp_path / "console.token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["console.token"]
    file.unlink()
    assert token_of(settings) != token


def test_a_token_that_a_power_cut_emptied_is_made_anew(tmp_path: Path) -> None:
    settings, file = config.load(tmp_path), tmp_path / "console.token"
    file.touch()
    assert len(token_of(settings)) >= 40
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("given", "begins"),
    [
        ({}, "http://127.0.0.1:9/?token="),
        ({"console_address": "::1"}, "http://[::1]:9/?token="),
        ({"console_address": "10.0.0.1", "console_certificate": "c"}, "https://10.0.0.1:9/?token="),
        (
            {"console_address": "0.0.0.0", "console_certificate": "c", "console_hosts": ("v.example",)},
            "https://v.example:9/?token=",
        ),
    ],
)
def test_the_url_names_a_host_that_the_console_answers_to(tmp_path: Path, given: dict[str, object], begins: str) -> None:
    settings = config.load(tmp_path, **given)
    url = url_of(settings, 9)
    assert url.startswith(begins)
    assert url.split("/")[2].rpartition(":")[0].strip("[]") in known_hosts(settings)
