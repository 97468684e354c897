"""A stand-in for Alibaba Cloud OSS and its STS, for tests and demos: the requests that volstream makes, in memory.

    python localstack/oss.py --port 9100 --bucket demo [--mns http://127.0.0.1:9101 --queue demo-events]

Requests must be signed with version 4, as oss2's ``ProviderAuthV4`` does, or with version 4 of S3's, whose protocol OSS
also supports. When an object changes it notifies MNS, in OSS's format.
Not supported: versions, and everything about buckets except creating and removing them.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import json
import mimetypes
import os
import re
import secrets
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape


class Refusal(Exception):  # noqa: N818  # an answer, not a failure of this program
    """An answer that is an error of the service."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(status, code, message)
        self.status, self.code, self.message = status, code, message or code


@dataclass(frozen=True)
class Object:
    content: bytes
    content_type: str
    modified: int
    etag: str
    metadata: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class Oss:
    """The service's state. Tests change it directly.

    Attributes:
        keys: secret, security token (None: long-lived) and end (None: never) by access key id.
        roles: external id by role ARN.
        conditions: ``If-None-Match: *`` of a PUT is respected. OSS does not document its effect in S3's protocol.
        faults: responses to the next requests, whatever they are.
        uploads: bucket, key, content type and parts of uploads in parts, by id.
        log: the last requests, as ``METHOD /bucket/key``.
        tell: receives the body of each message; None: no notifications.
    """

    keys: dict[str, tuple[str, str | None, datetime | None]] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    conditions: bool = False
    session_seconds: int | None = None
    region: str = "cn-hangzhou"
    faults: deque[Refusal] = field(default_factory=deque)
    log: deque[str] = field(default_factory=lambda: deque(maxlen=1000))
    tell: Callable[[bytes], object] | None = None
    buckets: dict[str, dict[str, Object]] = field(default_factory=dict)
    uploads: dict[str, tuple[str, str, str, dict[int, bytes]]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def objects(self, bucket: str) -> dict[str, Object]:
        if bucket not in self.buckets:
            raise Refusal(404, "NoSuchBucket", "The specified bucket does not exist.")
        return self.buckets[bucket]

    def object(self, bucket: str, key: str) -> Object:
        if key not in self.objects(bucket):
            raise Refusal(404, "NoSuchKey", "The specified key does not exist.")
        return self.buckets[bucket][key]

    def put(
        self, bucket: str, key: str, content: bytes, content_type: str = "", event: str = "PutObject", etag: str = ""
    ) -> Object:
        guessed = content_type or mimetypes.guess_type(key)[0] or "application/octet-stream"
        made = Object(content, guessed, int(time.time()), f'"{etag or hashlib.md5(content).hexdigest().upper()}"')
        with self.lock:
            before = self.objects(bucket).get(key)
            self.buckets[bucket][key] = made
        delta = len(content) - (len(before.content) if before else 0)
        self.announce(f"ObjectCreated:{event}", bucket, key, made, delta)
        return made

    def delete(self, bucket: str, key: str, event: str = "DeleteObject") -> None:
        with self.lock:
            gone = self.objects(bucket).pop(key, None)
        if gone is not None:
            self.announce(f"ObjectRemoved:{event}", bucket, key, gone, -len(gone.content))

    def announce(self, event: str, bucket: str, key: str, one: Object, delta: int) -> None:
        """Sends a notification of a change like OSS: Base64 of JSON."""
        if self.tell is None:
            return
        told = {
            "eventName": event,
            "eventSource": "acs:oss",
            "eventTime": stamp(milliseconds=True),
            "eventVersion": "1.0",
            "oss": {
                "bucket": {
                    "arn": f"acs:oss:{self.region}:1234567890:{bucket}",
                    "name": bucket,
                    "ownerIdentity": "1234567890",
                    "virtualBucket": "",
                },
                "object": {"deltaSize": delta, "eTag": one.etag.strip('"'), "key": key, "size": len(one.content)},
                "ossSchemaVersion": "1.0",
                "ruleId": "volstream",
            },
            "region": self.region,
            "requestParameters": {"sourceIPAddress": "127.0.0.1"},
            "responseElements": {"requestId": uuid.uuid4().hex.upper()},
            "userIdentity": {"principalId": "1234567890"},
        }
        self.tell(base64.b64encode(json.dumps({"events": [told]}).encode()))

    def secret_of(self, id_: str, token: str | None) -> str:
        secret, expected, ends = self.keys.get(id_, (None, None, None))
        if secret is None:
            raise Refusal(403, "InvalidAccessKeyId", "The OSS Access Key Id you provided does not exist in our records.")
        if token != expected:
            raise Refusal(403, "InvalidSecurityToken", "The security token you provided is invalid.")
        if ends is not None and ends <= datetime.now(UTC):
            raise Refusal(403, "SecurityTokenExpired", "The security token you provided has expired.")
        return secret

    def assume_role(self, form: Mapping[str, str]) -> dict[str, object]:
        """Returns the response of STS to AssumeRole."""
        secret = self.secret_of(form["AccessKeyId"], form.get("SecurityToken"))
        said = {key: value for key, value in form.items() if key != "Signature"}
        pairs = "&".join(f"{quote(key, safe='')}={quote(said[key], safe='')}" for key in sorted(said))
        text = f"POST&%2F&{quote(pairs, safe='')}"
        signature = base64.b64encode(hmac.digest(f"{secret}&".encode(), text.encode(), hashlib.sha1)).decode()
        if not hmac.compare_digest(signature, form["Signature"]):
            raise Refusal(400, "SignatureDoesNotMatch", "Specified signature is not matched with our calculation.")
        arn = form["RoleArn"]
        if arn not in self.roles:
            raise Refusal(404, "EntityNotExist.Role", "The role not exists.")
        if self.roles[arn] != form.get("ExternalId"):
            raise Refusal(403, "NoPermission", "You are not authorized to do this action.")
        seconds = self.session_seconds or int(form["DurationSeconds"])
        ends = datetime.now(UTC) + timedelta(seconds=seconds)
        id_, secret, token = f"STS.{secrets.token_hex(8)}", secrets.token_hex(16), secrets.token_hex(32)
        self.keys[id_] = (secret, token, ends)
        keys = {
            "AccessKeyId": id_,
            "AccessKeySecret": secret,
            "SecurityToken": token,
            "Expiration": ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        return {"RequestId": uuid.uuid4().hex, "AssumedRoleUser": {"Arn": arn}, "Credentials": keys}


def stamp(*, milliseconds: bool = False, at: float | None = None) -> str:
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    return moment.isoformat(timespec="milliseconds" if milliseconds else "seconds").replace("+00:00", "Z")


def _key_of(secret: str, *scope: str) -> bytes:
    """Returns the key that signs a request of the scope, as version 4 derives it."""
    key = secret.encode()
    for part in scope:
        key = hmac.digest(key, part.encode(), hashlib.sha256)
    return key


class Handler(BaseHTTPRequestHandler):
    """Handles one request: checks the signature, then does it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    oss: Oss

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *arguments: object) -> None:
        """Logs nothing."""

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        self.query = dict(parse_qsl(query, keep_blank_values=True))
        self.bucket, _, self.key = unquote(path).lstrip("/").partition("/") if path != "/" else ("", "", "")
        self.content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.oss.log.append(f"{self.command} /{self.bucket}/{self.key}")
        try:
            if self.oss.faults:
                raise self.oss.faults.popleft()
            if self.command == "POST" and not self.bucket:
                form = dict(parse_qsl(self.content.decode(), keep_blank_values=True))
                self._answer(200, json.dumps(self.oss.assume_role(form)).encode(), {"Content-Type": "application/json"})
                return
            self._check_signature()
            (self._object if self.key else self._bucket)()
        except Refusal as refusal:
            self._refuse(refusal)

    def _refuse(self, refusal: Refusal) -> None:
        if self.command == "POST" and not self.bucket:
            said = json.dumps({"Code": refusal.code, "Message": refusal.message, "RequestId": uuid.uuid4().hex}).encode()
        else:
            said = (
                f"<?xml version='1.0'?><Error><Code>{refusal.code}</Code><Message>{escape(refusal.message)}</Message>"
                f"<RequestId>{uuid.uuid4().hex}</RequestId></Error>"
            ).encode()
        self._answer(refusal.status, said)

    def _answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _authorization(self, pattern: str) -> Sequence[str]:
        """Returns the groups of the request's Authorization. Raises Refusal if it has another form."""
        found = re.fullmatch(pattern, self.headers.get("Authorization", ""))
        if found is None:
            raise Refusal(403, "AccessDenied", "The request is not signed, or not with version 4.")
        return found.groups(default="")

    def _check_signature_of_s3(self) -> None:
        id_, scope, day, region, names, signature = self._authorization(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/((\d+)/([^/]+)/s3/aws4_request), ?SignedHeaders=([^,]+), ?"
            r"Signature=([0-9a-f]+)"
        )
        secret = self.oss.secret_of(id_, self.headers.get("x-amz-security-token"))
        key = _key_of(f"AWS4{secret}", day, region, "s3", "aws4_request")
        query = sorted((quote(name, safe="~"), quote(value, safe="~")) for name, value in self.query.items())
        headers = "".join(f"{name}:{' '.join((self.headers.get(name) or '').split())}\n" for name in names.split(";"))
        canonical = "\n".join(
            [
                self.command,
                self.path.partition("?")[0],
                "&".join(f"{name}={value}" for name, value in query),
                headers,
                names,
                self.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
            ]
        )
        digest = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{self.headers.get('x-amz-date')}\n{scope}\n{digest}"
        if hmac.digest(key, text.encode(), hashlib.sha256).hex() != signature:
            raise Refusal(403, "SignatureDoesNotMatch", "The request signature we calculated does not match.")

    def _check_signature(self) -> None:
        if self.headers.get("Authorization", "").startswith("AWS4-"):
            self._check_signature_of_s3()
            return
        signs = self.query if "x-oss-signature" in self.query else self.headers
        if signs is self.query:
            id_, day, region, *_ = self.query["x-oss-credential"].split("/")
            signature, additional = self.query["x-oss-signature"], self.query.get("x-oss-additional-headers", "")
            since = datetime.strptime(self.query["x-oss-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            if datetime.now(UTC) > since + timedelta(seconds=int(self.query["x-oss-expires"])):
                raise Refusal(403, "AccessDenied", "Request has expired.")
        else:
            id_, day, region, signature, additional = self._authorization(
                r"OSS4-HMAC-SHA256 Credential=([^/]+)/(\d+)/([^/]+)/oss/aliyun_v4_request, Signature=([0-9a-f]+)"
                r"(?:, AdditionalHeaders=(.*))?"
            )
        secret = self.oss.secret_of(id_, signs.get("x-oss-security-token"))
        key = _key_of(f"aliyun_v4{secret}", day, region, "oss", "aliyun_v4_request")
        signed = {"content-type", "content-md5", *additional.split(";")}
        headers = sorted(
            (name.lower(), value)
            for name, value in self.headers.items()
            if name.lower().startswith("x-oss-") or name.lower() in signed
        )
        query = sorted(
            (quote(name, safe="~"), quote(value, safe="~")) for name, value in self.query.items() if name != "x-oss-signature"
        )
        place = f"/{self.bucket}/{self.key}" if self.bucket else "/"
        canonical = "\n".join(
            [
                self.command,
                quote(place, safe="/~"),
                "&".join(f"{name}={value}" if value else name for name, value in query),
                "".join(f"{name}:{value}\n" for name, value in headers),
                additional,
                self.headers.get("x-oss-content-sha256", "UNSIGNED-PAYLOAD"),
            ]
        )
        date = signs.get("x-oss-date", "")
        digest = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
        text = f"OSS4-HMAC-SHA256\n{date}\n{day}/{region}/oss/aliyun_v4_request\n{digest}"
        if not date.startswith(day) or hmac.digest(key, text.encode(), hashlib.sha256).hex() != signature:
            raise Refusal(403, "SignatureDoesNotMatch", "The request signature we calculated does not match.")

    def _bucket(self) -> None:
        match self.command:
            case "PUT":
                self.oss.buckets.setdefault(self.bucket, {})
                self._answer(200)
            case "DELETE":
                if self.oss.objects(self.bucket):
                    raise Refusal(409, "BucketNotEmpty")
                del self.oss.buckets[self.bucket]
                self._answer(204)
            case "POST" if "delete" in self.query:
                self.oss.objects(self.bucket)
                keys = [key.text or "" for key in ElementTree.fromstring(self.content).iter("Key")]
                for key in keys:
                    self.oss.delete(self.bucket, key, "DeleteObjects")
                gone = "".join(f"<Deleted><Key>{quote(key)}</Key></Deleted>" for key in keys)
                self._xml(f"<DeleteResult><EncodingType>url</EncodingType>{gone}</DeleteResult>")
            case "GET" if "uploads" in self.query:
                self._uploads()
            case "GET" | "HEAD" if self.query.get("list-type") == "2":
                self._list()
            case _:
                raise Refusal(501, "NotImplemented")

    def _list(self) -> None:
        with self.oss.lock:
            objects = dict(self.oss.objects(self.bucket))
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        token = self.query.get("continuation-token", "")
        after = base64.b64decode(token).decode() if token else self.query.get("start-after", "")
        encode = quote if self.query.get("encoding-type") == "url" else escape
        limit = int(self.query.get("max-keys") or 100)
        found: dict[str, Object | None] = {}
        last, truncated = after, False
        for key in sorted(objects, key=lambda one: one.encode("utf-8", "surrogateescape")):
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            entry = key if cut < 0 else key[: cut + len(delimiter)]
            if not key.startswith(prefix) or key <= after or entry in found or (cut >= 0 and after.startswith(entry)):
                continue
            if len(found) == limit:
                truncated = True
                break
            found[entry] = objects[key] if cut < 0 else None
            last = key
        contents = "".join(
            f"<Contents><Key>{encode(key)}</Key><LastModified>{stamp(milliseconds=True, at=one.modified)}</LastModified>"
            f"<ETag>{escape(one.etag)}</ETag><Type>Normal</Type><Size>{len(one.content)}</Size>"
            "<StorageClass>Standard</StorageClass></Contents>"
            for key, one in found.items()
            if one is not None
        )
        prefixes = "".join(
            f"<CommonPrefixes><Prefix>{encode(key)}</Prefix></CommonPrefixes>" for key, one in found.items() if one is None
        )
        following = base64.b64encode(last.encode()).decode()
        self._xml(
            f"<ListBucketResult><Name>{self.bucket}</Name><Prefix>{encode(prefix)}</Prefix><MaxKeys>{limit}</MaxKeys>"
            + ("<EncodingType>url</EncodingType>" if encode is quote else "")
            + f"<KeyCount>{len(found)}</KeyCount><IsTruncated>{str(truncated).lower()}</IsTruncated>"
            + (f"<NextContinuationToken>{following}</NextContinuationToken>" if truncated else "")
            + f"{contents}{prefixes}</ListBucketResult>"
        )

    def _uploads(self) -> None:
        """Lists the uploads in parts, all at once."""
        prefix = self.query.get("prefix", "")
        encode = quote if self.query.get("encoding-type") == "url" else escape
        listed = "".join(
            f"<Upload><Key>{encode(key)}</Key><UploadId>{identity}</UploadId><Initiated>{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.000Z}</Initiated></Upload>"
            for identity, (bucket, key, _, _) in self.oss.uploads.items()
            if bucket == self.bucket and key.startswith(prefix)
        )
        self._xml(
            f"<ListMultipartUploadsResult><Bucket>{self.bucket}</Bucket>"
            + ("<EncodingType>url</EncodingType>" if encode is quote else "")
            + "<KeyMarker/><UploadIdMarker/><NextKeyMarker/><NextUploadIdMarker/>"
            + f"<IsTruncated>false</IsTruncated>{listed}</ListMultipartUploadsResult>"
        )

    def _upload(self) -> None:
        """Handles requests about an upload in parts."""
        if "uploads" in self.query:
            identity = secrets.token_hex(16).upper()
            self.oss.uploads[identity] = (self.bucket, self.key, self.headers.get("Content-Type", ""), {})
            self._xml(
                f"<InitiateMultipartUploadResult><Bucket>{self.bucket}</Bucket><Key>{escape(self.key)}</Key>"
                f"<UploadId>{identity}</UploadId></InitiateMultipartUploadResult>"
            )
            return
        identity = self.query["uploadId"]
        if identity not in self.oss.uploads:
            raise Refusal(404, "NoSuchUpload")
        _, _, content_type, parts = self.oss.uploads[identity]
        if self.command == "DELETE":
            del self.oss.uploads[identity]
            self._answer(204)
        elif self.command == "PUT":
            source, part = self.headers.get("x-oss-copy-source"), self.content
            if source:
                bucket, _, key = unquote(source).lstrip("/").partition("/")
                start, _, end = self.headers["x-oss-copy-source-range"].removeprefix("bytes=").partition("-")
                part = self.oss.object(bucket, key).content[int(start) : int(end) + 1]
            parts[int(self.query["partNumber"])] = part
            etag = f'"{hashlib.md5(part).hexdigest().upper()}"'
            said = f"<?xml version='1.0'?><CopyPartResult><ETag>{escape(etag)}</ETag></CopyPartResult>" if source else ""
            self._answer(200, said.encode(), {"ETag": etag})
        else:
            del self.oss.uploads[identity]
            content = [parts[number] for number in sorted(parts)]
            digest = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in content)).hexdigest().upper()
            etag, event = f"{digest}-{len(parts)}", "CompleteMultipartUpload"
            made = self.oss.put(self.bucket, self.key, b"".join(content), content_type, event, etag)
            self._answer(
                200,
                f"<?xml version='1.0'?><CompleteMultipartUploadResult><ETag>{escape(made.etag)}</ETag>"
                "</CompleteMultipartUploadResult>".encode(),
                {"Content-Type": "application/xml", "ETag": made.etag},
            )

    def _object(self) -> None:
        if self.query.keys() & {"uploads", "uploadId"}:
            self._upload()
            return
        match self.command:
            case "PUT" if source := self.headers.get("x-oss-copy-source"):
                bucket, _, key = unquote(source).lstrip("/").partition("/")
                one = self.oss.object(bucket, key)
                made = self.oss.put(self.bucket, self.key, one.content, one.content_type, "CopyObject")
                self._xml(
                    f"<CopyObjectResult><ETag>{escape(made.etag)}</ETag><LastModified>{stamp()}</LastModified></CopyObjectResult>"
                )
            case "PUT" if (
                self.oss.conditions and self.headers.get("If-None-Match") == "*" and self.key in self.oss.objects(self.bucket)
            ):
                raise Refusal(412, "PreconditionFailed")
            case "PUT" if "tagging" in self.query:
                tags = ElementTree.fromstring(self.content).iter("Tag")
                pairs = {tag.findtext("Key", ""): tag.findtext("Value", "") for tag in tags}
                self.oss.object(self.bucket, self.key).tags.update(pairs)
                self._answer(200)
            case "PUT":
                made = self.oss.put(self.bucket, self.key, self.content, self.headers.get("Content-Type", ""))
                made.metadata.update(
                    (name, value) for name, value in self.headers.items() if name.lower().startswith("x-oss-meta-")
                )
                self._answer(200, headers={"ETag": made.etag})
            case "GET" if "tagging" in self.query:
                tagged = self.oss.object(self.bucket, self.key).tags.items()
                pairs = "".join(f"<Tag><Key>{escape(key)}</Key><Value>{escape(value)}</Value></Tag>" for key, value in tagged)
                self._xml(f"<Tagging><TagSet>{pairs}</TagSet></Tagging>")
            case "POST" if "append" in self.query:
                before = self.oss.objects(self.bucket).get(self.key)
                old = before.content if before else b""
                if int(self.query["position"]) != len(old):
                    raise Refusal(409, "PositionNotEqualToLength")
                type_ = self.headers.get("Content-Type", "")
                made = self.oss.put(self.bucket, self.key, old + self.content, type_, "AppendObject")
                self._answer(200, headers={"ETag": made.etag, "x-oss-next-append-position": str(len(made.content))})
            case "DELETE":
                self.oss.delete(self.bucket, self.key)
                self._answer(204)
            case "GET" | "HEAD":
                self._content(self.oss.object(self.bucket, self.key))
            case _:
                raise Refusal(501, "NotImplemented")

    def _content(self, one: Object) -> None:
        if self.headers.get("If-Match", one.etag).strip('"') != one.etag.strip('"'):
            raise Refusal(412, "PreconditionFailed")
        headers = {
            "ETag": one.etag,
            "Last-Modified": formatdate(one.modified, usegmt=True),
            "Content-Type": one.content_type,
            "x-oss-object-type": "Normal",
            "x-oss-storage-class": "Standard",
            **one.metadata,
        }
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        size = len(one.content)
        if asked is None or int(asked[1]) >= size:  # OSS sends everything for an unsatisfiable range
            status, start, end = 200, 0, size
        else:
            status, start, end = 206, int(asked[1]), min(int(asked[2] or size - 1) + 1, size)
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        body = one.content[start:end]
        if self.command == "HEAD":
            headers["Content-Length"] = str(len(body))
        self._answer(status, body, headers)

    def _xml(self, text: str) -> None:
        self._answer(200, f"<?xml version='1.0' encoding='UTF-8'?>{text}".encode(), {"Content-Type": "application/xml"})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that disconnect; prints a traceback for errors of this server."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def serve(oss: Oss, port: int = 0, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """Returns a server that is not serving yet; port 0: any free one."""
    return _Server((host, port), type("Handler", (Handler,), {"oss": oss}))


def mns(url: str, queue: str, id_: str, secret: str) -> Callable[[bytes], object]:
    """Returns a function that sends messages to a queue of MNS."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]  # it has a file named like the SDK
    from mns.account import Account
    from mns.queue import Message

    lock = threading.Lock()  # an account is for one thread at a time
    place = Account(url, id_, secret).get_queue(queue)
    place.set_encoding(False)

    def send(body: bytes) -> None:
        with lock:
            place.send_message(Message(body.decode()))

    return send


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=9100)
    parser.add_argument("--bucket", action="append", default=[], help="bucket to create; may be repeated")
    parser.add_argument("--access-key-id", default="test")
    parser.add_argument("--access-key-secret", default="test")
    parser.add_argument("--role-arn", help="a role that can be assumed")
    parser.add_argument("--external-id", default="", help="external id required to assume it")
    parser.add_argument("--mns", metavar="URL", help="MNS to notify of changes")
    parser.add_argument("--queue", help="its queue")
    said = parser.parse_args()
    oss = Oss(buckets={bucket: {} for bucket in said.bucket})
    oss.keys[said.access_key_id] = (said.access_key_secret, None, None)
    if said.role_arn:
        oss.roles[said.role_arn] = said.external_id
    if said.mns:
        oss.tell = mns(said.mns, said.queue, said.access_key_id, said.access_key_secret)
    server = serve(oss, said.port)
    print(f"OSS stand-in at http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
