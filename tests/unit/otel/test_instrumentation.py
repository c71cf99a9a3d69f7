"""Spans and metrics of OpenTelemetry, as the SDK's exporters in memory get them."""

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import aioprefetch as ap
from aioprefetch.testing import Fault, FaultLayer, FaultServer, Rule
from aioprefetch.testing.conformance.suite import checks
from tests.repository.source_tree import ROOT
from tests.stores.failing_disk import until

DATA = bytes(range(256)) * 400


class Exported:
    """Providers whose exporters keep what they get."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    def spans(self) -> tuple[ReadableSpan, ...]:
        """The spans that have ended."""
        return self.exporter.get_finished_spans()

    def points(self) -> dict[str, list[Any]]:
        """The data points of each metric."""
        data = self.reader.get_metrics_data()
        return (
            {}
            if data is None
            else {
                metric.name: list(metric.data.data_points)
                for resource in data.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            }
        )


@pytest.fixture
def exported() -> Exported:
    return Exported()


def s3(server: FaultServer) -> ap.Operator:
    """An operator of the server's bucket, without pauses between attempts."""
    service = ap.services.S3(
        bucket="bucket", endpoint_url=server.url, region="us-east-1", access_key_id="canary", secret_access_key="canary"
    )
    return ap.Operator(service).layer(ap.layers.RetryLayer(base_seconds=0, throttle_base_seconds=0))


async def test_each_request_is_a_span_below_its_caller(exported: Exported) -> None:
    """With the attributes that the conventions ask for; a second attempt says so."""
    slow_down = Rule(fault=Fault(status=503, code="SlowDown"), index=0)
    async with FaultServer({"bucket/a/k": DATA}, [slow_down]) as server, s3(server) as op:
        stop = ap.otel.instrument(op, tracer_provider=exported.tracers, meter_provider=exported.meters)
        with exported.tracers.get_tracer("test").start_as_current_span("caller") as caller:
            assert await op.read("a/k", offset=10, size=100) == DATA[10:110]
            with pytest.raises(ap.NotFound):
                await op.stat("missing")
        stop()
        await op.read("a/k")
        refused, read, stat = exported.spans()[:3]
        assert len(exported.spans()) == 4
        for span in (refused, read, stat):
            assert span.kind is SpanKind.CLIENT
            assert span.parent is not None
            assert span.parent.span_id == caller.get_span_context().span_id
        assert [span.name for span in (refused, read, stat)] == ["GET", "GET", "HEAD"]
        assert dict(read.attributes or {}) == {
            "http.request.method": "GET",
            "url.full": f"{server.url}/bucket/a/k",
            "url.scheme": "http",
            "server.address": "127.0.0.1",
            "server.port": server.port,
            "http.request.resend_count": 1,
            "http.response.status_code": 206,
            "aioprefetch.scheme": "s3",
            "aioprefetch.bucket": "bucket",
            "aioprefetch.operation": "read",
            "aioprefetch.path": "a/k",
            "aioprefetch.lane": "demand",
            "aioprefetch.start": 10,
            "aioprefetch.end": 110,
            "aioprefetch.bytes": 100,
        }
        assert [event.name for event in read.events] == ["first byte"]
        assert (refused.attributes or {})["error.type"] == "Throttled"
        assert refused.status.status_code is stat.status.status_code is StatusCode.ERROR
        assert read.status.status_code is StatusCode.UNSET
        assert (stat.attributes or {})["http.response.status_code"] == 404


@checks("reliability:K08")
async def test_metrics_count_requests_and_reads(exported: Exported) -> None:
    async with FaultServer({"bucket/k": DATA}) as server, s3(server) as op:
        stop = ap.otel.instrument(op, tracer_provider=exported.tracers, meter_provider=exported.meters)
        async with op.reader("k") as reader:
            for _ in range(3):
                await reader.read_at(0, 1000)
            await op.stat("k")
            points = exported.points()
        requests = len(server.requests)
        for name in ("http.client.request.duration", "aioprefetch.request.duration", "aioprefetch.request.first_byte"):
            assert sum(point.count for point in points[name]) == requests, name
        http = next(
            point
            for point in points["http.client.request.duration"]
            if point.attributes["http.request.method"] == "GET"
        )
        assert dict(http.attributes) == {
            "http.request.method": "GET",
            "url.scheme": "http",
            "server.address": "127.0.0.1",
            "server.port": server.port,
            "http.response.status_code": 206,
        }
        assert http.explicit_bounds[:3] == (0.005, 0.01, 0.025)
        served = {point.attributes["aioprefetch.tier"]: point.value for point in points["aioprefetch.read.bytes"]}
        assert served == {"store": 1000, "memory": 2000}
        received = {p.attributes["aioprefetch.operation"]: p.value for p in points["aioprefetch.request.bytes"]}
        assert received == {"read": len(DATA), "stat": 0}
        states = {p.attributes["http.connection.state"]: p.value for p in points["http.client.open_connections"]}
        assert sum(states.values()) == op.statistics["transport_connections_open"] >= 1
        (used,), (cached,) = points["aioprefetch.memory.used"], points["aioprefetch.memory.cached"]
        assert used.value >= cached.value >= len(DATA)
        assert points["aioprefetch.memory.limit"][0].value == op.options.memory_bytes
        stop()
        assert "http.client.open_connections" not in exported.points()
    assert "canary" not in repr([span.to_json() for span in exported.spans()]) + repr(points)


async def test_requests_of_other_services_are_spans_of_their_operation(exported: Exported) -> None:
    async with ap.Operator.from_uri("memory://otel") as op:
        stop = ap.otel.instrument(op, tracer_provider=exported.tracers, meter_provider=exported.meters)
        await op.write("a\nFAKE", b"abc")
        assert await op.read("a\nFAKE") == b"abc"
        stop()
        stop()
    assert {(span.attributes or {})["aioprefetch.path"] for span in exported.spans()} == {r"a\nFAKE"}
    assert [span.name for span in exported.spans()] == ["write", "read"]
    assert "http.client.request.duration" not in exported.points()


async def test_gauges_are_those_of_all_operators_that_are_instrumented_now(exported: Exported) -> None:
    """An SDK exports the first instrument of a name alone, also when what made it has ended."""

    def limits() -> dict[str, int]:
        return {
            p.attributes["aioprefetch.bucket"]: p.value for p in exported.points().get("aioprefetch.memory.limit", ())
        }

    sizes = (("a", 64), ("b", 128), ("a", 32))
    first, second, third = (
        ap.Operator.from_uri(f"memory://gauges-{name}", memory_bytes=size << 20) for name, size in sizes
    )
    stop, *others = (ap.otel.instrument(op, meter_provider=exported.meters) for op in (first, second, third))
    again = ap.otel.instrument(second, meter_provider=exported.meters)
    assert limits() == {"gauges-a": 96 << 20, "gauges-b": 128 << 20}
    stop()
    assert limits() == {"gauges-a": 32 << 20, "gauges-b": 128 << 20}
    for end in (*others, again):
        end()
    assert limits() == {}


async def test_operators_that_share_events_are_counted_once(exported: Exported) -> None:
    op = ap.Operator(ap.services.Memory())
    providers: Any = {"tracer_provider": exported.tracers, "meter_provider": exported.meters}
    stop, stop_layered = (ap.otel.instrument(one, **providers) for one in (op, op.layer(FaultLayer())))
    await op.write("k", b"abc")
    stop()
    stop()
    await op.write("k", b"abc")
    stop_layered()
    await op.write("k", b"abc")
    assert [span.name for span in exported.spans()] == ["write", "write"]
    again = ap.otel.instrument(op, **providers)
    await op.write("k", b"abc")
    again()
    assert len(exported.spans()) == 3


GLOBAL = """
import asyncio, sys
from opentelemetry import metrics, trace
import aioprefetch as ap
from tests.unit.otel.test_instrumentation import Exported

async def main():
    exported = Exported()
    trace.set_tracer_provider(exported.tracers)
    metrics.set_meter_provider(exported.meters)
    named = {"tracer_provider": exported.tracers, "meter_provider": exported.meters}
    op = ap.Operator(ap.services.Memory())
    ways = (named, {}) if sys.argv[1] == "named" else ({}, named)
    stops = [ap.otel.instrument(op, **providers) for providers in ways]
    await op.write("k", b"abc")
    stops[0]()
    await op.write("k", b"abc")
    points = exported.points()
    (sent,), (limit,) = points["aioprefetch.request.bytes"], points["aioprefetch.memory.limit"]
    assert (sent.value, limit.value) == (6, op.options.memory_bytes)
    stops[1]()
    await op.write("k", b"abc")
    assert [span.name for span in exported.spans()] == ["write", "write"]

asyncio.run(main())
"""


@pytest.mark.parametrize("first", ["named", "by default"])
def test_the_global_providers_count_once_also_by_name(first: str) -> None:
    """In a process of its own: they are set once."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", GLOBAL, first], env=environment, check=True, timeout=60)


async def test_a_request_that_was_cancelled_is_no_error(exported: Exported) -> None:
    held = Rule(fault=Fault(hang_before_head=True), index=0)
    async with FaultServer({"bucket/k": DATA}, [held]) as server, s3(server) as op:
        ap.otel.instrument(op, tracer_provider=exported.tracers, meter_provider=exported.meters)
        task = asyncio.create_task(op.read("k"))
        await until(lambda: server.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (span,) = exported.spans()
    assert span.status.status_code is StatusCode.UNSET
    assert (span.attributes or {})["aioprefetch.cancelled"] is True
    (point,) = exported.points()["aioprefetch.request.duration"]
    assert "error.type" not in point.attributes


def test_the_operator_of_a_program_without_a_loop(exported: Exported) -> None:
    with ap.sync.BlockingOperator(ap.Operator.from_uri("memory://otel-blocking")) as op:
        stop = ap.otel.instrument(op, tracer_provider=exported.tracers, meter_provider=exported.meters)
        op.write("k", b"abc")
        assert exported.points()["aioprefetch.memory.limit"][0].value == op.operator.options.memory_bytes
        stop()
    assert [span.name for span in exported.spans()] == ["write"]


def test_something_else_is_refused() -> None:
    store: Any = "memory://k"
    with pytest.raises(ap.InvalidType, match="Operator"):
        ap.otel.instrument(store)
