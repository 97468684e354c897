"""Pages of a container's listing, parsed by us and by Azure's package."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

import pytest
from azure.storage.blob import BlobPrefix, ContainerClient

from tests.clouds import QuietServer, serving
from volstream.files.providers.azure.store import _Blob, _blob, _extract_blobs

#: The next answers.
pages: list[bytes] = []


class _Service(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = pages.pop(0)
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not into the tests' output."""


@pytest.fixture
def container() -> Iterator[ContainerClient]:
    with serving(QuietServer(("127.0.0.1", 0), _Service)) as url, ContainerClient(f"{url}/account", "c") as client:
        yield client


def blob_of(chance: random.Random) -> str:
    name = "".join(
        chance.choice(["a", "/", "é", "\U0001f600", "&", "<", "%41", " ", "+", "'"]) for _ in range(chance.randint(1, 9))
    )
    encoded = chance.random() < 0.2
    spelled = f'<Name Encoded="true">{escape(quote(name))}</Name>' if encoded else f"<Name>{escape(name)}</Name>"
    md5 = base64.b64encode(chance.randbytes(16)).decode()
    properties = {
        "Creation-Time": "Thu, 01 Jan 2026 00:00:00 GMT",
        "Last-Modified": f"{chance.choice(['Thu, 01 Jan', 'Sun, 29 Feb'])} 2004 {chance.randrange(24):02}:00:{chance.randrange(60):02} GMT",
        "Etag": chance.choice(["0x8D{}", '"0x8D{}"']).format(chance.randrange(10**9)),
        "Content-Length": str(chance.choice([0, 1, 5 << 40])),
        "Content-Type": "text/plain",
        "Content-MD5": chance.choice([md5, ""]),
        "BlobType": chance.choice(["BlockBlob", "AppendBlob", "PageBlob"]),
        "AccessTier": "Hot",
        "ServerEncrypted": "true",
    }
    if chance.random() < 0.2:
        del properties["Content-MD5"]
    texts = "".join(f"<{key}>{value}</{key}>" for key, value in properties.items())
    metadata = chance.choice(
        ["", "<Metadata/>", "<Metadata><hdi_isfolder>True</hdi_isfolder></Metadata>", "<Metadata><a>b</a></Metadata>"]
    )
    return f"<Blob>{spelled}<Properties>{texts}</Properties>{metadata}<OrMetadata/></Blob>"


def page_of(chance: random.Random, marker: str) -> bytes:
    entries = [blob_of(chance) for _ in range(chance.randint(0, 5))]
    entries += [
        f"<BlobPrefix><Name>{escape(chance.choice(['d/', 'é/', '&/']))}</Name></BlobPrefix>" for _ in range(chance.randint(0, 2))
    ]
    chance.shuffle(entries)
    return (
        '\ufeff<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="http://x/" ContainerName="c">'
        f"<Prefix>p</Prefix><MaxResults>5000</MaxResults><Blobs>{''.join(entries)}</Blobs><NextMarker>{marker}</NextMarker>"
        "</EnumerationResults>"
    ).encode()


def listed(container: ContainerClient, given: list[bytes], *, deep: bool, ours: bool) -> tuple[list[_Blob], list[str]]:
    """Blobs and prefixes of a listing, in order."""
    pages[:] = given
    blobs, prefixes, taken = list[_Blob](), list[str](), list[_Blob]()

    def take(response: Any) -> None:
        taken[:] = _extract_blobs(response.http_response) if ours else []

    listing = (container.list_blobs if deep else container.walk_blobs)(include=["metadata"], raw_response_hook=take)
    for page in listing.by_page():
        entries: list[Any] = [*page]
        assert not (taken and [one for one in entries if not isinstance(one, BlobPrefix)])
        blobs += [*taken, *(_blob(one) for one in entries if not isinstance(one, BlobPrefix))]
        prefixes += [one.name for one in entries if isinstance(one, BlobPrefix)]
    return blobs, prefixes


@pytest.mark.parametrize("deep", [True, False])
def test_random_pages_are_read_as_by_the_package(container: ContainerClient, *, deep: bool) -> None:
    for seed in range(150):
        chance = random.Random(seed)
        given = [page_of(chance, "more") for _ in range(chance.randint(0, 2))]
        given.append(page_of(chance, ""))
        assert listed(container, given, deep=deep, ours=True) == listed(container, given, deep=deep, ours=False), seed


@pytest.mark.parametrize("lacking", ["Etag", "Content-Length", "Last-Modified"])
def test_a_page_that_is_not_as_expected_is_left_to_the_package(container: ContainerClient, lacking: str) -> None:
    page = (
        page_of(random.Random(3), "").replace(f"<{lacking}>".encode(), b"<Other>").replace(f"</{lacking}>".encode(), b"</Other>")
    )
    assert b"<Other>" in page
    seen: list[list[_Blob]] = []
    pages[:] = [page]
    assert [*container.list_blobs(raw_response_hook=lambda response: seen.append(_extract_blobs(response.http_response)))]
    assert seen == [[]]
