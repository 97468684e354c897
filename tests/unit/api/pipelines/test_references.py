"""What is taken for a secret by its name."""

from __future__ import annotations

import pytest

from volstream.api.pipelines.read import is_secret


@pytest.mark.parametrize(
    "name",
    [
        "DB_PASSWORD",
        "passwd",
        "apiKey",
        "API-KEY",
        "account_key",
        "ssl.key.pem",
        "PGPASS",
        "db_pass",
        "GITHUB_PAT",
        "auth",
        "proxy.auth",
        "SENTRY_DSN",
        "slack_webhook",
        "session_cookie",
        "signing_id",
        "aws_access_key_id",
        "credentials",
        "ACCESS_TOKEN",
        "user.pwd",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["author", "path", "pattern", "compass", "passenger", "keyboard", "primary_key", "bypass", "patient"]
)
def test_names_of_other_values(name: str) -> None:
    assert not is_secret(name)
