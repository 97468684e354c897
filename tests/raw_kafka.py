"""Sends to a topic what confluent-kafka does not, but other clients can: headers whose names are any bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import confluent_kafka

#: Of ``rd_kafka_producev``.
_TOPIC, _VALUE, _FLAGS, _HEADERS, _END, _COPY = 1, 4, 7, 10, 0, 2


def send(address: str, topic: str, value: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Sends a message by librdkafka itself; returns once the broker has it."""
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    lib: Any = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(lib, name).restype = ctypes.c_void_p
    said = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(lib.rd_kafka_conf_new())
    for key, setting in ((b"bootstrap.servers", address.encode()), (b"log_level", b"0")):
        lib.rd_kafka_conf_set(conf, key, setting, said, len(said))
    producer = ctypes.c_void_p(lib.rd_kafka_new(0, conf, said, len(said)))
    sent = ctypes.c_void_p(lib.rd_kafka_headers_new(ctypes.c_size_t(len(headers))))
    for header, content in headers:
        sizes = ctypes.c_ssize_t(len(header)), ctypes.c_ssize_t(len(content))
        lib.rd_kafka_header_add(sent, header, sizes[0], content, sizes[1])
    message = (_VALUE, value, ctypes.c_size_t(len(value)), _FLAGS, _COPY)
    assert not lib.rd_kafka_producev(producer, _TOPIC, topic.encode(), *message, _HEADERS, sent, _END)
    assert not lib.rd_kafka_flush(producer, 10_000)
    lib.rd_kafka_destroy(producer)
