"""OpenTelemetry: ``instrument(operator)`` makes spans and metrics of the requests and reads of an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.otel.instrumentation import instrument

__all__ = ["instrument"]

load_at_first_use(__name__, {"instrumentation": ("instrument",)}, extra="otel")
