"""Both clouds on this machine without Docker: moto for S3, SQS and STS, the stand-ins beside this file for OSS, STS and MNS.

    python localstack/up.py [s3] [oss]

Each gets a bucket, and a queue that is notified of its changes; prints the next commands to type. Everything is in memory, and
ends with Ctrl-C. Needs the packages of volstream's tests (``make setup``).
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
import threading
from pathlib import Path
from types import ModuleType

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
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for each request
    server = ThreadedMotoServer(host, port, verbose=False)
    server.start()
    endpoint = f"http://{_reachable(host)}:{server.get_host_and_port()[1]}"
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


def _reachable(host: str) -> str:
    return "127.0.0.1" if host == "0.0.0.0" else host


def main() -> None:
    """Runs until it is stopped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clouds", nargs="*", metavar="s3|oss", help="both unless one is named")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 is for containers only")
    parser.add_argument("--s3-port", type=int, default=4566)
    parser.add_argument("--oss-port", type=int, default=9100)
    parser.add_argument("--mns-port", type=int, default=9101)
    parser.add_argument("--bucket", default="demo")
    parser.add_argument("--queue", default="demo-events")
    said = parser.parse_args()
    clouds = set(said.clouds or ("s3", "oss"))
    if clouds - {"s3", "oss"}:
        parser.error(f"choose s3 or oss, not {', '.join(sorted(clouds - {'s3', 'oss'}))}")
    if "s3" in clouds:
        print(start_s3(said.host, said.s3_port, said.bucket, said.queue), flush=True)
    if "oss" in clouds:
        print(start_oss(said.host, said.oss_port, said.mns_port, said.bucket, said.queue), flush=True)
    print("Ready. Ctrl-C ends everything.", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print("Ended.")


if __name__ == "__main__":
    main()
