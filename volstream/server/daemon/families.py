"""Families of Prometheus metrics, which all begin with the program's name."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


def counter(name: str, help_: str, *labels: str) -> CounterMetricFamily:
    """Returns a number that only grows, without samples."""
    return CounterMetricFamily(f"volstream_{name}", help_, labels=labels)


def gauge(name: str, help_: str, *labels: str) -> GaugeMetricFamily:
    """Returns a number that can go up and down, without samples."""
    return GaugeMetricFamily(f"volstream_{name}", help_, labels=labels)
