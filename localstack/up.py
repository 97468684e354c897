"""Clouds on this machine without Docker: moto for S3, SQS and STS; the stand-ins beside this file for OSS, STS and MNS;
fake-gcs-server and Google's own Pub/Sub server for tests; Azurite, with events by a stand-in.

    python localstack/up.py [s3] [oss] [gs] [az]

Each gets a bucket, and a queue that is notified of its changes; prints the next commands to type. Everything is in memory, and
ends with Ctrl-C. Needs the packages of volstream's tests (``make setup``), gs and az also ``make servers``.
"""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

ROLE, EXTERNAL_ID, ACCOUNT_REGION = "acs:ram::1234567890:role/volstream", "volstream", "cn-hangzhou"

_S3 = """
S3, SQS and STS at {endpoint}: the bucket {bucket!r} notifies the queue {queue!r}

  export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
  volstream create-connection local_s3 --type s3 --region {region} --endpoint {endpoint}
  volstream create-volume s3_files s3://{bucket}/in --connection local_s3 --queue-type sqs --queue-name {queue}
"""
_OSS = """
OSS and STS at {endpoint}, MNS at {mns}: the bucket {bucket!r} notifies the queue {queue!r}
(a role to assume: {role}, external id {external_id!r})

  export ALIBABA_CLOUD_ACCESS_KEY_ID=test ALIBABA_CLOUD_ACCESS_KEY_SECRET=test
  volstream create-connection local_oss --type oss --region {region} --endpoint {endpoint}
  volstream create-volume oss_files oss://{bucket}/in --connection local_oss --queue-type mns \\
      --queue-name {mns}/queues/{queue}
"""


_GS = """
Cloud Storage at {endpoint}, Pub/Sub at {messages}: the bucket {bucket!r} notifies the subscription {queue!r}

  volstream create-connection local_gs --type gs --endpoint {endpoint}
  volstream create-volume gs_files gs://{bucket}/in --connection local_gs --queue-type pubsub --queue-name {queue}
"""
_AZ = """
Blob Storage at {endpoint}, Storage Queues at {messages}: the container {bucket!r} notifies the queue {queue!r}

  export AZURE_STORAGE_ACCOUNT={account} AZURE_STORAGE_KEY={key}
  volstream create-connection local_az --type az --endpoint {endpoint}
  volstream create-volume az_files az://{bucket}/in --connection local_az --queue-type storagequeue --queue-name {queue}
"""

#: Requests of S3 and SQS at once: each queue that is waited for takes one.
_LONG_POLLS = 1_100

#: The servers of tests, for which those of gs and az are started.
_CHECKOUT = Path(__file__).resolve().parents[1]
_servers = ExitStack()


def beside(name: str) -> ModuleType:
    """Imports a module of this folder by its path, because one of them has the name of an SDK."""
    spec = importlib.util.spec_from_file_location(f"localstack_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start_s3(host: str, port: int, bucket: str, queue: str) -> str:
    """Starts S3, SQS and STS; returns the next commands to type."""
    import uvicorn
    from a2wsgi import WSGIMiddleware
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    moto = DomainDispatcherApplication(create_backend_app)

    def answer(environ: dict[str, Any], start: Any) -> Any:
        # Keys as they were sent: WSGI has only decoded paths.
        return moto({**environ, "RAW_URI": environ["asgi.scope"]["raw_path"].decode("ascii")}, start)

    # Connections stay open, as at Amazon's services; moto's own server closes them, for which consumers of queues would pay.
    application = WSGIMiddleware(answer, workers=_LONG_POLLS)
    config = uvicorn.Config(application, host, port, lifespan="off", log_level="warning")
    listening = config.bind_socket()
    threading.Thread(target=uvicorn.Server(config).run, args=([listening],), daemon=True).start()
    endpoint = f"http://{_reachable(host)}:{listening.getsockname()[1]}"
    wiring = beside("wire_s3")
    wiring.wire(endpoint, bucket, queue)
    return _S3.format(endpoint=endpoint, bucket=bucket, queue=queue, region=wiring.REGION)


def start_oss(host: str, port: int, mns_port: int, bucket: str, queue: str) -> str:
    """Starts OSS, STS and MNS; returns the next commands to type."""
    oss, mns = beside("oss"), beside("mns")
    state = oss.Oss(buckets={bucket: {}}, roles={ROLE: EXTERNAL_ID}, region=ACCOUNT_REGION)
    state.keys["test"] = ("test", None, None)
    queues = mns.MnsServer(mns_port, state.secret_of, host)
    heard = queues.make(queue, VisibilityTimeout=60)
    state.tell = lambda body: heard.send(body.decode())
    objects = oss.serve(state, port, host)
    for server in (queues, objects):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint, place = (f"http://{_reachable(host)}:{server.server_port}" for server in (objects, queues))
    return _OSS.format(
        endpoint=endpoint, mns=place, bucket=bucket, queue=queue, region=ACCOUNT_REGION, role=ROLE, external_id=EXTERNAL_ID
    )


def start_gs(bucket: str, queue: str) -> str:
    """Starts Cloud Storage and Pub/Sub; returns the next commands to type."""
    servers, clouds = _of_tests()
    messages = _servers.enter_context(servers.pubsub())
    subscription = clouds.PubSub(messages).make(queue).subscription
    events = ["-event.pubsub-project-id=tests", f"-event.pubsub-topic={queue}", "-event.list=finalize,delete,metadataUpdate"]
    emulator = {"PUBSUB_EMULATOR_HOST": messages.partition("://")[2]}
    endpoint = _servers.enter_context(servers.fake_gcs(*events, **emulator))
    clouds.google_client(clouds.Access("gs", endpoint=endpoint)).create_bucket(bucket, project="tests")
    return _GS.format(endpoint=endpoint, messages=messages, bucket=bucket, queue=subscription)


def start_az(bucket: str, queue: str) -> str:
    """Starts Blob Storage and Storage Queues; returns the next commands to type."""
    from azure.storage.blob import BlobServiceClient
    from azure.storage.queue import QueueClient

    servers, _ = _of_tests()
    account, key = servers.AZURE_ACCOUNT, servers.AZURE_KEY
    keys = {"account_name": account, "account_key": key}
    blobs = _servers.enter_context(servers.azurite())
    host, _, port = blobs.rpartition(":")
    messages = f"{host}:{int(port) + 1}"
    with BlobServiceClient(f"{blobs}/{account}", keys) as service:
        service.create_container(bucket)
    client = QueueClient(f"{messages}/{account}", queue, credential=keys)
    client.create_queue()
    events = beside("event_grid").EventGrid(blobs.partition("://")[2], bucket, client)
    threading.Thread(target=events.serve_forever, daemon=True).start()
    address = f"{messages}/{account}/{queue}"
    endpoint = f"http://127.0.0.1:{events.server_port}"
    return _AZ.format(endpoint=endpoint, messages=messages, bucket=bucket, queue=address, account=account, key=key)


def _of_tests() -> tuple[Any, Any]:
    sys.path.insert(0, str(_CHECKOUT))
    from tests import clouds, servers

    atexit.register(_servers.close)
    return servers, clouds


def _reachable(host: str) -> str:
    return "127.0.0.1" if host == "0.0.0.0" else host


def main() -> None:
    """Runs until it is stopped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clouds", nargs="*", metavar="s3|oss|gs|az", help="s3 and oss unless some are named")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 is for containers only")
    parser.add_argument("--s3-port", type=int, default=4566)
    parser.add_argument("--oss-port", type=int, default=9100)
    parser.add_argument("--mns-port", type=int, default=9101)
    parser.add_argument("--bucket", default="demo")
    parser.add_argument("--queue", default="demo-events")
    said = parser.parse_args()
    clouds = set(said.clouds or ("s3", "oss"))
    known = {"s3", "oss", "gs", "az"}
    if clouds - known:
        parser.error(f"choose s3, oss, gs or az, not {', '.join(sorted(clouds - known))}")
    if "s3" in clouds:
        print(start_s3(said.host, said.s3_port, said.bucket, said.queue), flush=True)
    if "oss" in clouds:
        print(start_oss(said.host, said.oss_port, said.mns_port, said.bucket, said.queue), flush=True)
    if "gs" in clouds:
        print(start_gs(said.bucket, said.queue), flush=True)
    if "az" in clouds:
        print(start_az(said.bucket, said.queue), flush=True)
    print("Ready. Ctrl-C ends everything.", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print("Ended.")


if __name__ == "__main__":
    main()
