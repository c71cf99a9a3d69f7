"""The requests and reads of an operator as spans and metrics of OpenTelemetry.

Requests over HTTP follow the semantic conventions for HTTP clients: names and attributes are theirs, and what they have
no word for begins with ``aioprefetch.``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter, get_meter_provider
from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider, get_tracer, get_tracer_provider

from aioprefetch.errors import printable
from aioprefetch.operator.shared import observed_operator
from aioprefetch.runtime.events import CANCELLED, Event, EventBus

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator
    from aioprefetch.sync.blocking_operator import BlockingOperator

Attributes = dict[str, str | int | float]
Provider = TypeVar("Provider")
_Value = tuple[str, int]  # The state of connections, empty for others, and the value.

# The buckets that the conventions give for durations of HTTP clients, in seconds.
SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PORTS = {"http": 80, "https": 443}
_EVENTS = (
    *("request.started", "request.first_byte", "request.finished", "request.failed", "request.retried"),
    "read.served",
)


def instrument(
    operator: Operator | BlockingOperator,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Callable[[], None]:
    """Make spans and metrics of an operator's requests and reads from now on; the function returned ends that.

    Without providers the global ones are used, whichever these are by then. Each request is a span of kind ``CLIENT``
    below the span in which it was asked for. Metrics include all operators made from this one by ``layer``:
    to instrument several of them counts nothing twice, and ends with the last. A request that was cancelled, as a
    prefetch is when its reader closes, has ``aioprefetch.cancelled`` and no error.
    """
    observed = observed_operator(operator, "instrument")
    for running in tuple(_running):
        if running.exports(observed.events, tracer_provider, meter_provider):
            return running.hold()
    return Instrumentation(observed, tracer_provider, meter_provider).hold()


class Instrumentation:
    """Spans and metrics of one operator."""

    def __init__(
        self, operator: Operator, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None
    ) -> None:
        info = operator.info
        self._exported = operator.events, tracer_provider, meter_provider
        self._spans: dict[int, Span] = {}
        self._common: Attributes = {"aioprefetch.scheme": info.scheme, "aioprefetch.bucket": info.name}
        self._tracer = get_tracer("aioprefetch", tracer_provider=tracer_provider)
        meter = get_meter("aioprefetch", meter_provider=meter_provider)

        def seconds(name: str, description: str) -> Callable[[float, Attributes], None]:
            histogram = meter.create_histogram(
                name, unit="s", description=description, explicit_bucket_boundaries_advisory=SECONDS_BUCKETS
            )
            return histogram.record

        def counter(name: str, unit: str, description: str) -> Callable[[int, Attributes], None]:
            return meter.create_counter(name, unit=unit, description=description).add

        self._http_seconds = seconds("http.client.request.duration", "Duration of HTTP client requests.")
        self._request_seconds = seconds("aioprefetch.request.duration", "Requests to the store, from start to end.")
        self._first_byte_seconds = seconds("aioprefetch.request.first_byte", "Requests, from start to their head.")
        self._wait_seconds = seconds("aioprefetch.read.wait", "How long reads took their callers.")
        self._count_retry = counter("aioprefetch.retries", "{retry}", "Attempts after the first.")
        self._count_bytes = counter("aioprefetch.request.bytes", "By", "Bytes of bodies, received or sent.")
        self._count_read_bytes = counter("aioprefetch.read.bytes", "By", "Bytes that callers of reads got.")
        self._gauges = _gauges_of(meter_provider)
        self._gauges.operators[self] = operator
        self._holders: set[object] = set()
        self._unsubscribe = operator.events.subscribe(self._on_event, *_EVENTS)
        _running.append(self)

    def exports(
        self, events: EventBus, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None
    ) -> bool:
        """Whether it exports these events to these providers: the global one is the same with and without its name."""
        own_events, own_tracers, own_meters = self._exported
        return (
            own_events is events
            and _or_global(own_tracers, get_tracer_provider) is _or_global(tracer_provider, get_tracer_provider)
            and _or_global(own_meters, get_meter_provider) is _or_global(meter_provider, get_meter_provider)
        )

    def hold(self) -> Callable[[], None]:
        """Go on until the function returned is called, and the functions of all other holders."""
        holder = object()
        self._holders.add(holder)

        def release() -> None:
            if holder in self._holders:
                self._holders.remove(holder)
                if not self._holders:
                    self._end()

        return release

    def _end(self) -> None:
        """Listen no more, and end the spans of requests in flight."""
        _running.remove(self)
        self._unsubscribe()
        self._gauges.operators.pop(self, None)
        while self._spans:
            self._spans.popitem()[1].end()

    def _on_event(self, event: Event) -> None:
        facts = event.facts
        if event.name == "request.started":
            self._start_span(event)
        elif event.name == "request.first_byte":
            span = self._spans.get(facts["request_id"])
            if span is not None:
                span.add_event("first byte")
        elif event.name == "request.retried":
            self._count_retry(
                1, {**self._common, "aioprefetch.operation": facts["operation"], "error.type": facts["error"]}
            )
        elif event.name == "read.served":
            attributes = {**self._common, "aioprefetch.tier": facts["tier"]}
            self._count_read_bytes(facts["end"] - facts["start"], attributes)
            if facts["waited_seconds"] is not None:
                self._wait_seconds(facts["waited_seconds"], attributes)
        else:
            self._end_request(event)

    def _start_span(self, event: Event) -> None:
        facts = event.facts
        attributes = {
            **self._common,
            **_of_http(event),
            "aioprefetch.operation": facts["operation"],
            "aioprefetch.path": printable(event.path),
            "aioprefetch.lane": facts["lane"],
        }
        if facts["url"]:
            attributes["url.full"] = facts["url"]
        if facts["attempt"] > 1:
            attributes["http.request.resend_count"] = facts["attempt"] - 1
        for name in ("start", "end"):
            if facts[name] is not None:
                attributes[f"aioprefetch.{name}"] = facts[name]
        self._spans[facts["request_id"]] = self._tracer.start_span(
            facts["method"] or facts["operation"], kind=SpanKind.CLIENT, attributes=attributes
        )

    def _end_request(self, event: Event) -> None:
        facts = event.facts
        ended: Attributes = {}
        if facts["status"] is not None:
            ended["http.response.status_code"] = facts["status"]
        if facts.get("error") == CANCELLED:
            ended["aioprefetch.cancelled"] = True
        elif "error" in facts:
            ended["error.type"] = facts["error"]
        if facts["method"]:
            self._http_seconds(facts["seconds"], {**_of_http(event), **ended})
        own = {**self._common, "aioprefetch.operation": facts["operation"]}
        self._request_seconds(facts["seconds"], own | ended)
        if facts["first_byte_seconds"] is not None:
            self._first_byte_seconds(facts["first_byte_seconds"], own)
        self._count_bytes(facts["bytes"], own)
        span = self._spans.pop(facts["request_id"], None)
        if span is not None:
            span.set_attributes({**ended, "aioprefetch.bytes": facts["bytes"]})
            if "error.type" in ended:
                span.set_status(StatusCode.ERROR, facts["message"] or facts["error"])
            span.end()


class _Gauges:
    """The gauges of all operators that are instrumented with one provider, read by the SDK on its thread.

    Of several instruments with one name it exports the first, so there is one of each.
    """

    def __init__(self, meter: Meter) -> None:
        self.operators: dict[Instrumentation, Operator] = {}

        def gauge(name: str, unit: str, description: str, values: Callable[[Operator], Iterable[_Value]]) -> None:
            def observe(options: CallbackOptions) -> Iterator[Observation]:
                return self._observed(values)

            meter.create_observable_up_down_counter(name, [observe], unit=unit, description=description)

        gauge("http.client.open_connections", "{connection}", "Connections of our transport, by state.", _connections)
        gauge("aioprefetch.memory.used", "By", "Memory in use or reserved.", _memory_used)
        gauge("aioprefetch.memory.cached", "By", "Memory of readers' blocks and of requests for them.", _memory_cached)
        gauge("aioprefetch.memory.limit", "By", "memory_bytes of the operator.", _memory_limit)

    def _observed(self, values: Callable[[Operator], Iterable[_Value]]) -> Iterator[Observation]:
        """The sums over operators of one store. Operators that share events share connections and memory."""
        sums: Counter[tuple[str, str, str]] = Counter()
        for operator in {operator.events: operator for operator in tuple(self.operators.values())}.values():
            for state, value in values(operator):
                sums[operator.info.scheme, operator.info.name, state] += value
        for (scheme, bucket, state), value in sums.items():
            attributes: Attributes = {"aioprefetch.scheme": scheme, "aioprefetch.bucket": bucket}
            yield Observation(value, attributes | ({"http.connection.state": state} if state else {}))


def _connections(operator: Operator) -> Iterable[_Value]:
    statistics = operator.statistics
    idle = statistics["transport_connections_idle"]
    return ("idle", idle), ("active", statistics["transport_connections_open"] - idle)


def _memory_used(operator: Operator) -> Iterable[_Value]:
    return (("", operator.statistics["stream_read_active_memory_in_use"]),)


def _memory_cached(operator: Operator) -> Iterable[_Value]:
    return (("", operator.statistics["stream_read_bytes_in_cache"]),)


def _memory_limit(operator: Operator) -> Iterable[_Value]:
    return (("", operator.options.memory_bytes),)


_running: list[Instrumentation] = []  # Unfinished ones.
_gauges: WeakKeyDictionary[object, _Gauges] = WeakKeyDictionary()


def _gauges_of(provider: MeterProvider | None) -> _Gauges:
    """The gauges of a provider. The global one may be set later: until then it has a place of its own here."""
    named = _or_global(provider, get_meter_provider)
    gauges = _gauges.get(named)
    if gauges is None and named is get_meter_provider():
        gauges = _gauges.get(_Gauges)
    if gauges is None:
        key: object = _Gauges if provider is None else provider
        gauges = _gauges[key] = _Gauges(get_meter("aioprefetch", meter_provider=provider))
    return gauges


def _or_global(provider: Provider | None, get_global: Callable[[], Provider]) -> Provider:
    return get_global() if provider is None else provider


def _of_http(event: Event) -> Attributes:
    """The attributes of a request over HTTP that its span and its metrics share."""
    method, url = event.facts["method"], event.facts["url"]
    if not method:
        return {}
    attributes: Attributes = {"http.request.method": method}
    if url:
        parts = urlsplit(url)
        attributes |= {"url.scheme": parts.scheme, "server.address": parts.hostname or ""}
        attributes["server.port"] = parts.port or _PORTS.get(parts.scheme, 0)
    return attributes
