"""Prometheus: ``Collector(operator)`` exports the requests, reads, memory and connections of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.prometheus.collector import Collector

__all__ = ["Collector"]

load_at_first_use(__name__, {"collector": ("Collector",)}, extra="prometheus")
