"""Options of real-time streams: the defaults of the document, values that are refused, and builders."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from volstream.errors import InvalidValueError
from volstream.ingest import FlushMode, RealtimeOptions, RealtimeOptionsBuilder, RetryStatus


def test_the_defaults_are_those_of_the_document() -> None:
    assert RealtimeOptionsBuilder().build() == RealtimeOptions(
        flush_mode=FlushMode.AUTO_FLUSH_BACKGROUND,
        mutation_buffer_lines_num=1000,
        mutation_buffer_space=10 * 1024 * 1024,
        mutation_buffer_max_num=50,
        flush_interval=10_000,
        request_failed_retry_enable=True,
        request_failed_retry_times=5,
        request_failed_retry_internal_ms=5000,
        request_failed_retry_log_debug_enable=True,
        request_failed_retry_status=frozenset(
            {RetryStatus.THROTTLED, RetryStatus.INTERNAL_ERROR, RetryStatus.FAILED, RetryStatus.PRECHECK_FAILED}
        ),
    )


def test_the_chain_of_the_document_sets_every_option() -> None:
    options = (
        RealtimeOptionsBuilder()
        .with_flush_mode(FlushMode.MANUAL_FLUSH)
        .with_mutation_buffer_lines_num(50000)
        .with_mutation_buffer_max_num(5)
        .with_mutation_buffer_space(20 * 1024 * 1024)
        .with_flush_interval(1000)
        .with_request_failed_retry_enable(False)
        .with_request_failed_retry_times(2)
        .with_request_failed_retry_internal_ms(50)
        .with_request_failed_retry_log_debug_enable(False)
        .with_request_failed_retry_status([RetryStatus.FAILED])
        .with_truncation(False)
        .build()
    )
    assert options == RealtimeOptions(
        FlushMode.MANUAL_FLUSH, 50000, 20 << 20, 5, 1000, False, 2, 50, False, frozenset({RetryStatus.FAILED}), False
    )


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("with_mutation_buffer_lines_num", 0),
        ("with_mutation_buffer_lines_num", 1.5),
        ("with_mutation_buffer_space", -1),
        ("with_mutation_buffer_max_num", True),
        ("with_flush_interval", "10s"),
        ("with_request_failed_retry_times", -1),
        ("with_request_failed_retry_internal_ms", None),
        ("with_flush_mode", "synchronous"),
        ("with_request_failed_retry_status", ["FAILURE"]),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_where_it_is_given(method: str, value: object) -> None:
    with pytest.raises(InvalidValueError):
        getattr(RealtimeOptionsBuilder(), method)(value)


def test_options_are_frozen_and_a_builder_can_go_on() -> None:
    builder = RealtimeOptionsBuilder()
    first = builder.build()
    builder.with_flush_interval(1)
    assert first.flush_interval == 10_000
    with pytest.raises(FrozenInstanceError):
        first.flush_interval = 1  # type: ignore[misc]
