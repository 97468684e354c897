"""A Kafka broker of the test run: one node of KRaft, on free ports of 127.0.0.1. ``python -m tests.broker`` fetches its jars.

What it needs besides, such as Scala and Jackson, is part of pyspark.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]  # it lists no exports

from tests.ports import free_ports
from tests.waiting import eventually
from volstream.base import config
from volstream.errors import JavaError
from volstream.spark.jvm import install
from volstream.spark.jvm.install import Jar

#: Where a reader of a topic can be killed, besides where any writer can.
POINTS = ("kafka.polled",)

_SET_UP = "Run `make broker`."

_VERSION = "4.4.0"

_KAFKA = {
    "kafka-clients": "1ab07317eb6633241392449d329dbdc5d9251e6ffc4926860f42dd966e88bdf9",
    "kafka-coordinator-common": "e380267a17981edbadaa2e2e785f18dc1b5671abf2d1084eb7da06a765c71d0c",
    "kafka-group-coordinator": "3fc830ace54f6a13f9f536bc0564bf39a68797365a4c4b194bd7db4fb893b2bc",
    "kafka-group-coordinator-api": "bf11d7586c7363ba72a16ac5ef80c65365de9166469f7f6fc4ac5d2e0a98213a",
    "kafka-metadata": "6c52de74ecd670332e1e1324f5d40311275ac49b22699b6722e5fb07dd266fcb",
    "kafka-raft": "687f278ce5d82b7f53644643e21e1a7452530f202826108990f0fe4f3d334d4f",
    "kafka-server": "5f5456c2976203525080220212639f7033274b94458ceabf44197f4800bd615c",
    "kafka-server-common": "e50931831a27a2f3eb6cf74e8d63cc325b4e98656f30e94f8829297951ca5080",
    "kafka-share-coordinator": "6969a7961ca98d37a039bbe0af0fe761d6b0dd07ca9666802f47821167afbb6e",
    "kafka-storage": "9eaa4dafacc251080ece0efa8511283da5de6931e843457f6af87f02f9b50039",
    "kafka-storage-api": "edd47a86cdce283fc15d033090417a5dec29642eb807713f2e807e3c46b5ca46",
    "kafka-transaction-coordinator": "1d5324d59776d6b7f324cfdc87647b1e88f9823332201c0324e7ae9f210d915d",
    "kafka_2.13": "76d3314f873571677ff98620ab9a431e508e3687f921a3df4f70d692a970475e",
}

_OTHERS = {
    ("com.google.re2j", "re2j", "1.8"): "7b52c72156dd7f98b3237a5b35c1d34fba381b21048c89208913ad80a45dfbd7",
    (
        "com.typesafe.scala-logging",
        "scala-logging_2.13",
        "3.9.6",
    ): "0ad0c3f4d89d538b3b6c300158555e266aa69cf1b5f6522aba8b5bad238eb994",
    ("com.yammer.metrics", "metrics-core", "2.2.0"): "6b7a14a6f34c10f8683f7b5e2f39df0f07b58c7dff0e468ebbc713905c46979c",
    ("commons-validator", "commons-validator", "1.10.1"): "ed74711a78d793ca37f6075e4a1e93d107233dfd20d0bb17e32bad88d38e56aa",
    ("net.sf.jopt-simple", "jopt-simple", "5.0.4"): "df26cc58f235f477db07f753ba5a3ab243ebe5789d9f89ecf68dd62ea9a66c28",
    ("net.sourceforge.argparse4j", "argparse4j", "0.7.0"): "65ceb669d88f63306c680f8088bbf765bbca72d288a61a03703000076c3d3f56",
    ("org.hdrhistogram", "HdrHistogram", "2.2.2"): "22d1d4316c4ec13a68b559e98c8256d69071593731da96136640f864fa14fad8",
    ("org.pcollections", "pcollections", "4.0.2"): "2bbeef5797a241300c4f7513cd546239629ed7deda4fc0c31df90bb95f5f13ef",
}

JARS = (
    *(Jar("org.apache.kafka", name, _VERSION, checksum) for name, checksum in _KAFKA.items()),
    *(Jar(*place, checksum) for place, checksum in _OTHERS.items()),
)

#: Patterns of those that come with pyspark.
_SPARKS = (
    "scala-library-*",
    "jackson-core-2*",
    "jackson-databind-*",
    "jackson-annotations-*",
    "slf4j-api-*",
    "log4j-api-*",
    "log4j-core-*",
    "log4j-slf4j2-impl-*",
    "lz4-java-*",
    "snappy-java-*",
    "zstd-jni-*",
)

_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=WARN")

_START_SECONDS = 60.0


class Broker:
    """A broker with its data in a folder. Topics are not created by themselves.

    Attributes:
        address: ``host:port`` for clients.
    """

    def __init__(self, folder: Path, class_path: Sequence[Path]) -> None:
        self._folder = folder
        self._java = [str(install.find_java().executable), *_JVM, "-cp", ":".join(map(str, class_path))]
        self._process: subprocess.Popen[bytes] | None = None
        port, controller = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self._settings = folder / "server.properties"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": folder / "data",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            "log.message.timestamp.after.max.ms": 2**63 - 1,
            **{
                f"{log}.{name}": 1
                for log in ("offsets.topic", "transaction.state.log")
                for name in ("num.partitions", "replication.factor")
            },
            "transaction.state.log.min.isr": 1,
        }
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        subprocess.run(
            [*self._java, "kafka.tools.StorageTool", "format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c", self._settings],
            check=True,
            capture_output=True,
            timeout=_START_SECONDS,
        )
        self.admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def start(self) -> None:
        """Returns once it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*self._java, "kafka.Kafka", self._settings], stdout=log, stderr=log)
        eventually(self._answers, _START_SECONDS)

    def stop(self) -> None:
        """Stops it at once, as in a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def topic(self, partitions: int = 1, name: str | None = None, **settings: str) -> str:
        """Creates a topic; returns its name once the broker knows it. Its partitions may not have a leader yet."""
        name = name or f"t{uuid.uuid4().hex[:8]}"
        self.admin.create_topics([NewTopic(name, partitions, config=settings)])[name].result(30)
        eventually(lambda: self._knows(name), 30)
        return name

    def delete(self, topic: str) -> None:
        """Returns once the broker does not know it."""
        self.admin.delete_topics([topic])[topic].result(30)
        eventually(lambda: not self._knows(topic), 30)

    def add_partitions(self, topic: str, count: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)

    def cut(self, topic: str, partition: int, before: int) -> None:
        """Deletes the messages before an offset, as retention does."""
        for done in self.admin.delete_records([TopicPartition(topic, partition, before)]).values():
            done.result(30)

    def send(self, topic: str, *values: str | bytes | None, partition: int = 0, **more: Any) -> None:
        """Sends messages; returns once the broker has them."""
        producer = self.producer()
        for value in values:
            producer.produce(topic, value=value, partition=partition, **more)
        assert producer.flush(30) == 0

    def committed(self, topic: str, group: str, partition: int = 0) -> int | None:
        """The offset that a group has committed."""
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
        [found] = self.admin.list_consumer_group_offsets([asked])[group].result(30).topic_partitions
        return None if found.offset == OFFSET_INVALID else found.offset

    def producer(self, **settings: str) -> Producer:
        return Producer({"bootstrap.servers": self.address, "log_level": 0, **settings})

    def _knows(self, topic: str) -> bool:
        try:
            self.admin.describe_topics(TopicCollection([topic]))[topic].result(30)
        except KafkaException:
            return False
        return True

    def _answers(self) -> bool:
        assert self._process is not None, "it was started"
        if self._process.poll() is not None:
            raise AssertionError((self._folder / "log").read_text())
        try:
            found: Mapping[int, object] = self.admin.list_topics(timeout=1).brokers
        except KafkaException:
            return False
        return bool(found)


@contextmanager
def running() -> Iterator[Broker]:
    """A broker of its own. Raises JavaError if its jars were not fetched."""
    own = install.cached_jars(config.cache_directory(), JARS, _SET_UP)
    folder = Path(tempfile.mkdtemp(prefix="volstream-kafka-"))
    spark = install.pyspark_directory() / "jars"
    made = Broker(folder, [*own, *(path for pattern in _SPARKS for path in spark.glob(f"{pattern}.jar"))])
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A running broker; skips where its jars were not fetched, but not in CI."""
    try:
        with running() as made:
            yield made
    except JavaError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


def main() -> int:
    """Fetches the jars; returns the process's exit status."""
    cache = config.cache_directory()
    try:
        fetched = install.fetch_jars(cache, JARS)
    except JavaError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  # the command's output
        return error.exit_code
    print(f"Kafka {_VERSION} jars: {'fetched into' if fetched else 'in'} {cache / 'jars'}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
