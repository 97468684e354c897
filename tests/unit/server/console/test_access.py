"""Who is let in: tokens, cookies, hosts and origins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from volstream.base.model.paths import LOOPBACK
from volstream.server.console.http import Access, refusal

TOKEN = "a-token"
SAME = {"origin": "http://127.0.0.1:8642", "sec-fetch-site": "same-origin"}


def _requester(request: Request) -> Response:
    return PlainTextResponse(request.scope.get("state", {}).get("who", "anybody"))


@pytest.fixture
def client() -> Iterator[TestClient]:
    routes = [Route(path, _requester, methods=["GET", "POST"]) for path in ("/", "/jobs/a", "/healthz", "/static/x")]
    access = Middleware(Access, hosts=frozenset(LOOPBACK), token=TOKEN, refuse=refusal)
    app = Starlette(routes=routes, middleware=[access])
    app.state.port = 8642
    with TestClient(app, base_url="http://127.0.0.1:8642", follow_redirects=False) as client:
        yield client


@pytest.fixture
def browser(client: TestClient) -> TestClient:
    """A client that has the cookie."""
    assert client.get(f"/?token={TOKEN}").status_code == 303
    return client


def test_pages_need_a_token_and_probes_do_not(client: TestClient) -> None:
    assert [client.get(path).status_code for path in ("/", "/jobs/a", "/healthz", "/static/x")] == [401, 401, 200, 200]


def test_a_locked_page_says_how_to_open_the_console(client: TestClient) -> None:
    answer = client.get("/", headers={"accept": "text/html"})
    assert "volstream console" in answer.text
    assert client.get("/", headers={"accept": "application/json"}).json()["error"]["message"] == "The token is missing."


def test_a_token_in_the_url_becomes_a_strict_cookie_and_leaves_the_url(client: TestClient) -> None:
    answer = client.get(f"/jobs/a?after=3&token={TOKEN}&group=x")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/a?after=3&group=x")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("volstream-8642=")
    assert TOKEN not in cookie
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Path=/"))
    assert client.get("/jobs/a").text == "console"


def test_a_cookie_is_for_https_only_if_the_console_speaks_it(client: TestClient) -> None:
    assert "Secure" not in client.get(f"/?token={TOKEN}").headers["set-cookie"]
    secure = TestClient(client.app, base_url="https://127.0.0.1:8642", follow_redirects=False)
    assert "Secure" in secure.get(f"/?token={TOKEN}").headers["set-cookie"]


def test_the_redirect_cannot_lead_to_another_host(client: TestClient) -> None:
    answer = client.get(f"//evil.example/?token={TOKEN}")
    assert answer.headers.get("location", "/").startswith("/")
    assert not answer.headers.get("location", "/").startswith("//")


@pytest.mark.parametrize("given", ["", "wrong", TOKEN[:-1], TOKEN + "x", "ü"])
def test_wrong_tokens_are_refused_wherever_they_are(client: TestClient, given: str) -> None:
    assert client.get("/", params={"token": given}).status_code == 401
    assert client.get("/", headers=[(b"authorization", f"Bearer {given}".encode())]).status_code == 401
    assert client.get("/", headers=[(b"cookie", f"volstream-8642={given}".encode())]).status_code == 401


def test_programs_send_the_token_as_bearer_and_need_no_origin(client: TestClient) -> None:
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/", headers=bearer).text == "api"
    assert client.post("/jobs/a", headers=bearer).text == "api"


def test_an_action_comes_from_a_page_of_the_same_origin(browser: TestClient) -> None:
    assert browser.post("/jobs/a", headers=SAME).text == "console"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "https://127.0.0.1:8642"},
        {**SAME, "sec-fetch-site": "cross-site"},
        {**SAME, "sec-fetch-site": "same-site"},
        {**SAME, "sec-fetch-site": "none"},
    ],
)
def test_an_action_from_elsewhere_is_refused(browser: TestClient, headers: dict[str, str]) -> None:
    assert browser.post("/jobs/a", headers=headers).status_code == 403


def test_another_host_name_is_refused_even_with_the_token(client: TestClient) -> None:
    headers = {"host": "evil.example", "authorization": f"Bearer {TOKEN}"}
    assert client.get("/", headers=headers).status_code == 421
    assert client.get("/healthz", headers={"host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    "host",
    [
        "localhost/static/",
        "localhost/static/x?",
        "127.0.0.1:8642/healthz?",
        "localhost#",
        "localhost?x=",
        "user@localhost",
        "localhost:8642:1",
        "localhost:",
        "localhost\\@evil.example",
        "[::1",
        "[::1]/static/",
        "[::1]evil",
        "\u212aocalhost",
        " localhost",
        "",
    ],
)
def test_a_host_is_a_name_and_a_port(client: TestClient, host: str) -> None:
    assert client.get("/jobs/a", headers=[(b"host", host.encode())]).status_code == 421


def test_probes_of_an_address_in_the_network_answer_to_any_host_and_nothing_else_does() -> None:
    routes = [Route(path, _requester, methods=["GET", "POST"]) for path in ("/", "/jobs/a", "/metrics", "/readyz", "/static/x")]
    access = Middleware(Access, hosts=frozenset(LOOPBACK), token=TOKEN, refuse=refusal, exposed=True)
    client = TestClient(Starlette(routes=routes, middleware=[access]), base_url="https://10.1.2.3:8642")
    assert [client.get(path).status_code for path in ("/metrics", "/readyz")] == [200, 200]
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert [client.get(path, headers=bearer).status_code for path in ("/", "/jobs/a", "/static/x", "/metrics/")] == [421] * 4
    assert client.post("/jobs/a", headers=bearer).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8642", "127.0.0.1:1", "[::1]", "[::1]:8642"])
def test_this_hosts_names_are_let_through(client: TestClient, host: str) -> None:
    assert client.get("/healthz", headers={"host": host}).status_code == 200


def test_the_path_that_is_asked_for_decides_and_not_the_one_in_the_url_with_the_host() -> None:
    """With any host let through, as if the check above were missing."""
    app = Starlette(
        routes=[Route("/jobs/a", _requester)], middleware=[Middleware(Access, hosts=_Every(), token=TOKEN, refuse=refusal)]
    )
    client = TestClient(app, base_url="http://127.0.0.1:8642")
    for host in ("localhost/static/", "localhost/healthz?", "localhost/healthz#"):
        assert client.get("/jobs/a", headers={"host": host}).status_code == 401


class _Every(frozenset[str]):
    def __contains__(self, name: object) -> bool:
        return True


def test_every_answer_forbids_scripts_of_others_frames_and_guesses(client: TestClient) -> None:
    for path in ("/", "/healthz", "/static/x", "/nowhere"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self'")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    assert client.get("/").headers["cache-control"] == "no-store"
