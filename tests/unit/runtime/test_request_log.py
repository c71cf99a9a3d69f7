"""``AIOPREFETCH_LOG=requests`` in a program of its own: a line for each request, without secrets."""

import os
import re
import subprocess
import sys

import pytest

from aioprefetch import ConfigInvalid, NotFound, Operator
from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.runtime.events import EventBus, line_of
from aioprefetch.services import Memory
from aioprefetch.values import StatRequest
from tests.repository.source_tree import ROOT
from tests.unit.trace.recordings import runtime_of

PROGRAM = """
import asyncio
import aioprefetch as ap
from aioprefetch.testing import Fault, FaultServer, Rule

async def main():
    slow_down = Rule(fault=Fault(status=503, code="SlowDown"), index=0)
    async with FaultServer({"bucket/k": bytes(1000)}, [slow_down]) as server:
        service = ap.services.S3(
            bucket="bucket", endpoint_url=server.url, region="us-east-1", access_key_id="canary-key",
            secret_access_key="canary-secret", session_token="canary-token", signing="presigned",
        )
        retry = ap.layers.RetryLayer(base_seconds=0, throttle_base_seconds=0)
        async with ap.Operator(service).layer(retry) as op:
            await op.read("k", offset=10, size=100)
            await op.exists("missing")
asyncio.run(main())
"""


def test_a_line_for_each_request() -> None:
    environment = {**os.environ, "AIOPREFETCH_LOG": "requests"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
    lines = [re.sub(r"\d+\.\d/\d+\.\d ms|127\.0\.0\.1:\d+|^.*?,\d+ ", "", line) for line in run.stderr.splitlines()]
    assert lines[1] == "read k again in 0.000 s after Throttled"
    assert re.fullmatch(r"read GET http:///bucket/k \[10, 110\) 503 Throttled \d+ bytes  demand", lines[0]), lines[0]
    assert lines[2] == "read GET http:///bucket/k [10, 110) 206 100 bytes  demand attempt 2"
    assert lines[3] == "stat HEAD http:///bucket/missing 404 NotFound 0 bytes  control"
    assert len(lines) == 4
    assert "canary" not in run.stderr
    assert "X-Amz" not in run.stderr


def test_another_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOPREFETCH_LOG", "everything")
    with pytest.raises(ConfigInvalid, match="'requests'"):
        Operator(Memory())


def test_a_key_cannot_forge_a_line() -> None:
    bus, lines = EventBus(), list[str]()
    bus.subscribe(lambda event: lines.append(line_of(event)), "request.finished", "request.failed", "request.retried")
    for name in ("request.failed", "request.finished"):
        reported = ReportedRequest(runtime_of(bus), StatRequest(path="a\nFAKE LINE?x-amz-signature=CANARY"))
        bus.publish("request.retried", "b\rFAKE", operation="stat", wait_seconds=0, error="Throttled")
        reported.failed(NotFound("no")) if name == "request.failed" else reported.finished()
    assert [line for line in lines if not line.isprintable() or "CANARY" in line] == []
    assert any(r"a\nFAKE LINE" in line for line in lines)
