"""A collector of prometheus_client: events feed counters and histograms, and a scrape reads gauges."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as BaseCollector

from aioprefetch.errors import InvalidArgument
from aioprefetch.operator.shared import observed_operator
from aioprefetch.runtime.events import CANCELLED, Event

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator
    from aioprefetch.sync.blocking_operator import BlockingOperator

SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# A hit takes microseconds.
WAIT_SECONDS_BUCKETS = (0.00001, 0.0001, *SECONDS_BUCKETS)
_STORE = ("scheme", "bucket")
_REQUEST = ("operation", *_STORE)
_EVENTS = ("request.finished", "request.failed", "request.retried", "read.served")
_Sums = Counts[tuple[str, ...]]  # By the values of the labels.


class Collector(BaseCollector):
    """Exports what operators do, and all that are made from them by ``layer``, from now until ``close``.

    It registers itself with ``registry``, by default the global one, unless that is ``None``. A registry takes one
    collector: give it all operators (``ValueError`` from it for a second one). The labels ``scheme`` and ``bucket``
    tell them apart; of operators that have both in common the metrics are sums.
    """

    def __init__(self, *operators: Operator | BlockingOperator, registry: CollectorRegistry | None = REGISTRY) -> None:
        if not operators:
            raise InvalidArgument("give the operators to collect from", operation="collect")
        observed = [observed_operator(operator, "collect") for operator in operators]
        # Operators that share events share memory and connections too, and are collected once.
        self._operators = tuple({operator.events: operator for operator in observed}.values())
        self._registry = registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"aioprefetch_{name}", text, labels, registry=None)

        def histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = SECONDS_BUCKETS) -> Histogram:
            return Histogram(f"aioprefetch_{name}", text, labels, buckets=buckets, registry=None)

        self._requests = counter("requests", "Requests to the store, by status or error", *_REQUEST, "result")
        self._seconds = histogram("request_seconds", "Requests to the store, from start to end", *_REQUEST)
        self._first_byte = histogram("first_byte_seconds", "Requests to the store, from start to the head", *_REQUEST)
        self._bytes = counter("request_bytes", "Bytes of bodies, received or sent", *_REQUEST)
        self._retries = counter("retries", "Attempts after the first, by the error before", *_REQUEST, "error")
        self._reads = counter("reads", "Reads of callers, by where the bytes came from", "tier", *_STORE)
        self._read_bytes = counter("read_bytes", "Bytes that callers of reads got", "tier", *_STORE)
        self._wait = histogram(
            "read_wait_seconds", "How long reads took", "tier", *_STORE, buckets=WAIT_SECONDS_BUCKETS
        )
        if registry is not None:
            registry.register(self)  # First: it may refuse, and what it refuses must not listen.
        self._off: list[Callable[[], None]] = [
            operator.events.subscribe(partial(self._on_event, operator.info.scheme, operator.info.name), *_EVENTS)
            for operator in self._operators
        ]

    def close(self) -> None:
        """Stop listening, and leave the registry. May be called twice."""
        while self._off:
            self._off.pop()()
        registry, self._registry = self._registry, None
        if registry is not None:
            registry.unregister(self)

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment; called by the registry, on any thread."""
        for metric in (
            *(self._requests, self._seconds, self._first_byte, self._bytes, self._retries),
            *(self._reads, self._read_bytes, self._wait),
        ):
            yield from metric.collect()
        # Two operators may have the same labels; a scrape may have one sample for each.
        memory, cached, limit, connections, withheld = _Sums(), _Sums(), _Sums(), _Sums(), _Sums()
        for operator in self._operators:
            store, statistics = (operator.info.scheme, operator.info.name), operator.statistics
            idle = statistics["transport_connections_idle"]
            memory[store] += statistics["stream_read_active_memory_in_use"]
            cached[store] += statistics["stream_read_bytes_in_cache"]
            limit[store] += operator.options.memory_bytes
            connections["idle", *store] += idle
            connections["active", *store] += statistics["transport_connections_open"] - idle
            withheld[store] += statistics["slots_withheld"]
        yield _gauge("memory_bytes", "Memory in use or reserved", memory)
        yield _gauge("memory_cached_bytes", "Memory of readers' blocks and of requests that fill them", cached)
        yield _gauge("memory_limit_bytes", "The memory_bytes of the operator", limit)
        yield _gauge("connections", "Connections of our transport, by state", connections, "state")
        yield _gauge("slots_withheld", "Slots that throttling has closed for now", withheld)

    def _on_event(self, scheme: str, bucket: str, event: Event) -> None:
        facts: Any = event.facts
        if event.name == "read.served":
            labels = facts["tier"], scheme, bucket
            self._reads.labels(*labels).inc()
            self._read_bytes.labels(*labels).inc(facts["end"] - facts["start"])
            if facts["waited_seconds"] is not None:
                self._wait.labels(*labels).observe(facts["waited_seconds"])
            return
        request = facts["operation"], scheme, bucket
        if event.name == "request.retried":
            self._retries.labels(*request, facts["error"]).inc()
            return
        result = facts.get("error") or str(facts["status"] or "ok")
        if result == CANCELLED:
            result = "cancelled"
        self._requests.labels(*request, result).inc()
        self._seconds.labels(*request).observe(facts["seconds"])
        self._bytes.labels(*request).inc(facts["bytes"])
        if facts["first_byte_seconds"] is not None:
            self._first_byte.labels(*request).observe(facts["first_byte_seconds"])


def _gauge(name: str, text: str, sums: _Sums, *labels: str) -> Metric:
    family = GaugeMetricFamily(f"aioprefetch_{name}", text, labels=(*labels, *_STORE))
    for values, value in sums.items():
        family.add_metric(values, value)
    return family
