"""What a scrape gets, by the parser of prometheus_client; and that the dashboard asks for nothing else."""

import asyncio
import json
import re
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import aioprefetch as ap
from aioprefetch.testing import Fault, FaultServer, Rule
from tests.repository.source_tree import ROOT
from tests.stores.failing_disk import until

DATA = bytes(range(256)) * 400
DASHBOARD = ROOT / "examples" / "grafana_dashboard.json"


def scraped(registry: CollectorRegistry) -> dict[str, dict[tuple[str, ...], float]]:
    """The values of each sample, by the values of its labels in the order of their names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels[name] for name in sorted(sample.labels))] = (
                sample.value
            )
    return found


async def scrape_of_a_store() -> tuple[dict[str, dict[tuple[str, ...], float]], list[str]]:
    """A scrape after a write, two reads, of which one was throttled once, a hit and an error; what the server got."""
    registry = CollectorRegistry()
    throttled = Rule(fault=Fault(status=503, code="SlowDown"), index=0)
    async with FaultServer({"bucket/k": DATA}, [throttled]) as server:
        service = ap.services.S3(
            bucket="bucket",
            endpoint_url=server.url,
            region="us-east-1",
            access_key_id="canary-key",
            secret_access_key="canary-secret",
            session_token="canary-token",
        )
        op = ap.Operator(service).layer(ap.layers.RetryLayer(base_seconds=0, throttle_base_seconds=0))
        async with op:
            collector = ap.prometheus.Collector(op, registry=registry)
            assert await op.read("k", size=100) == DATA[:100]
            async with op.reader("k") as reader:
                for _ in range(2):
                    await reader.read_at(0, 1000)
                with pytest.raises(ap.NotFound):
                    await op.stat("missing")
                found = scraped(registry)
            collector.close()
            collector.close()
            await op.read("k", size=1)
        assert generate_latest(registry) == b""
        return found, [request.method for request in server.requests][:-1]


async def test_a_scrape_counts_what_the_server_counts() -> None:
    found, methods = await scrape_of_a_store()
    requests = found["aioprefetch_requests_total"]
    assert requests == {
        ("bucket", "read", "206", "s3"): 2,
        ("bucket", "read", "Throttled", "s3"): 1,
        ("bucket", "stat", "NotFound", "s3"): 1,
    }
    assert sum(requests.values()) == len(methods)
    assert found["aioprefetch_retries_total"] == {("bucket", "Throttled", "read", "s3"): 1}
    counts = {("bucket", "read", "s3"): 3, ("bucket", "stat", "s3"): 1}
    assert found["aioprefetch_request_seconds_count"] == found["aioprefetch_first_byte_seconds_count"] == counts
    assert found["aioprefetch_reads_total"] == {("bucket", "s3", "store"): 2, ("bucket", "s3", "memory"): 1}
    assert found["aioprefetch_read_bytes_total"] == {("bucket", "s3", "store"): 1100, ("bucket", "s3", "memory"): 1000}
    assert found["aioprefetch_request_bytes_total"][("bucket", "read", "s3")] >= 100 + len(DATA)
    used, cached = (found[f"aioprefetch_memory{of}_bytes"][("bucket", "s3")] for of in ("", "_cached"))
    assert used >= cached >= len(DATA)
    assert found["aioprefetch_memory_limit_bytes"][("bucket", "s3")] == 256 << 20
    connections = found["aioprefetch_connections"]
    assert connections[("bucket", "s3", "active")] == 0
    assert connections[("bucket", "s3", "idle")] >= 1
    assert "canary" not in repr(found)


async def test_several_operators_share_a_collector() -> None:
    registry = CollectorRegistry()
    stores = [ap.Operator.from_uri(f"memory://prometheus-{number}") for number in range(2)]
    collector = ap.prometheus.Collector(*stores, registry=registry)
    for op in stores:
        async with op:
            await op.write("k", b"abc")
    assert scraped(registry)["aioprefetch_requests_total"] == {
        ("prometheus-0", "write", "ok", "memory"): 1,
        ("prometheus-1", "write", "ok", "memory"): 1,
    }
    collector.close()


async def test_operators_of_one_bucket_are_summed_and_those_of_a_family_count_once() -> None:
    registry = CollectorRegistry()
    one, other = (ap.Operator.from_uri(f"memory://same/{name}", memory_bytes=8 << 20) for name in "xy")
    collector = ap.prometheus.Collector(one, one.layer(ap.layers.RetryLayer()), other, registry=registry)
    for op in (one, other):
        async with op:
            await op.write("k", b"abc")
    text = generate_latest(registry).decode()
    samples = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    found = scraped(registry)
    assert found["aioprefetch_requests_total"] == {("same", "write", "ok", "memory"): 2}
    assert found["aioprefetch_memory_limit_bytes"] == {("same", "memory"): 16 << 20}
    collector.close()


def test_a_collector_that_the_registry_refuses_does_not_listen() -> None:
    registry, op = CollectorRegistry(auto_describe=True), ap.Operator.from_uri("memory://refused")
    collector = ap.prometheus.Collector(op, registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        ap.prometheus.Collector(op, registry=registry)
    collector.close()
    assert op.events.listeners == ()
    ap.prometheus.Collector(op, registry=registry).close()


def test_the_operator_of_a_program_without_a_loop() -> None:
    registry = CollectorRegistry()
    with ap.sync.BlockingOperator(ap.Operator.from_uri("memory://collected")) as op:
        collector = ap.prometheus.Collector(op, registry=registry)
        op.write("k", b"abc")
        found = scraped(registry)
        collector.close()
    assert found["aioprefetch_requests_total"] == {("collected", "write", "ok", "memory"): 1}
    assert set(found["aioprefetch_memory_limit_bytes"].values()) == {op.operator.options.memory_bytes}


async def test_a_request_that_was_cancelled_is_no_error() -> None:
    registry = CollectorRegistry()
    held = Rule(fault=Fault(hang_before_head=True), index=0)
    async with FaultServer({"k": DATA}, [held]) as server, ap.Operator.from_uri(server.url) as op:
        collector = ap.prometheus.Collector(op, registry=registry)
        task = asyncio.create_task(op.read("k"))
        await until(lambda: server.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        results = {labels[2] for labels in scraped(registry)["aioprefetch_requests_total"]}
        collector.close()
    assert results == {"cancelled"}


def test_something_else_is_refused() -> None:
    store: Any = "memory://k"
    with pytest.raises(ap.InvalidType, match="Operator"):
        ap.prometheus.Collector(store)
    with pytest.raises(ap.InvalidArgument):
        ap.prometheus.Collector()


async def test_each_metric_of_the_dashboard_is_exported() -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    named = {name for query in asked for name in re.findall(r"\baioprefetch_\w+", query)}
    found, _ = await scrape_of_a_store()
    assert len(asked) >= 8
    assert named <= found.keys()
    assert [panel["title"] for panel in dashboard["panels"] if not panel.get("targets")] == []
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
