"""``doctor`` and ``bench``: what they find on stores that are known, and what they leave behind."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.cli.doctor import settings_for
from aioprefetch.testing import FaultServer
from aioprefetch.testing.faults import Fault, Rule
from tests.unit.cli.commands import Bucket, objects, run

MIB = 1 << 20


def outcomes(report: Any) -> dict[str, str]:
    return {check["check"]: check["outcome"] for check in report["checks"]}


def test_doctor_of_a_bucket(bucket: Bucket) -> None:
    bucket.put(small=b"1", d__large=bytes(3 * MIB))
    (report,) = objects("doctor", "--json", "--write", bucket.url())
    assert set(outcomes(report).values()) == {"ok"}
    assert {"clock", "suffix ranges", "If-Match", "conditional writes", "bandwidth"} <= outcomes(report).keys()
    assert abs(report["clock_offset_seconds"]) < 30
    assert report["size"] == 3 * MIB  # The largest object is read.
    assert report["settings"]["block_bytes"].endswith("MiB")
    assert bucket.paths() == ["d/large", "small"]
    bucket.server.reset()
    (report,) = objects("doctor", "--json", "--bytes", "1MiB", bucket.url("d"))
    assert outcomes(report)["conditional writes"] == "skipped"
    assert bucket.server.bytes_sent < 3 * MIB
    shown = run("doctor", bucket.url("small")).stdout
    assert "the variable AIOPREFETCH_ACCESS_KEY_ID" in shown
    assert bucket.server.secret_access_key not in shown


def test_doctor_says_where_keys_are(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Options, variables and files of AWS, and no key of them."""
    bucket.put(k=b"1")
    canary = "canary5ecret"
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AIOPREFETCH_{name}")
    files = tmp_path / "credentials"
    files.write_text(f"[work]\naws_access_key_id = AKIA{canary}\naws_secret_access_key = {canary}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(files))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for variables, arguments, place in (
        ({}, ["--profile", "work"], str(files)),
        ({}, ["--anonymous"], "none: anonymous"),
        ({}, [], "none in options, variables and files; asked: the metadata of the machine"),
        ({"AWS_ACCESS_KEY_ID": canary, "AWS_SECRET_ACCESS_KEY": canary}, [], "the variable AWS_ACCESS_KEY_ID"),
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code = int("none" in place)  # moto knows no public buckets.
            result = run("doctor", "--json", *arguments, bucket.url("k"), code=code)
        assert place in result.stdout
        assert canary not in result.output


async def test_doctor_of_a_store_that_ignores_what_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultServer({"k": bytes(1000)}) as server:
        server.add(Rule(fault=Fault(ignore_if_match=True), times=None))
        (report,) = await asyncio.to_thread(objects, "doctor", "--json", f"{server.url}/k")
        assert outcomes(report)["If-Match"] == "warning"
        (report,) = await asyncio.to_thread(lambda: objects("doctor", "--json", f"{server.url}/none", code=1))
        assert outcomes(report)["object"] == "failed"


def test_settings_grow_with_latency_and_bandwidth() -> None:
    """A block takes four times the wait for its first byte; there is a connection for each part of the rate."""
    near = settings_for(0.001, 100e6, 200e6)
    far = settings_for(0.08, 90e6, 1200e6)
    assert near == {"block_bytes": "1MiB", "prefetch_blocks": 3, "memory_bytes": "256MiB"}
    assert far == {"block_bytes": "32MiB", "prefetch_blocks": 15, "memory_bytes": "1920MiB"}


def test_bench_beside_what_is_installed(bucket: Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put(k=bytes(MIB))
    peers = [text for name in ("obstore", "pyarrow", "boto3") for text in ("--peer", name)]
    (report,) = objects("bench", "--json", "--rounds", 1, *peers, bucket.url("k"))
    names = [name.partition(" ")[0] for name in report["libraries"]]
    assert names == ["aioprefetch", "obstore", "pyarrow", "boto3"]
    assert all(figures["bytes_per_second"] > 0 for figures in report["libraries"].values())
    result = run("bench", "--rounds", 1, "--peer", "pyarrow", folder / "big")
    assert "aioprefetch" in result.stdout
    assert "pyarrow" in result.stdout
    monkeypatch.setitem(sys.modules, "obstore", None)
    result = run("bench", "--rounds", 1, "--peer", "obstore", "--peer", "s3fs", folder / "big", code=1)
    assert result.stderr.splitlines() == ["aioprefetch: obstore: not installed", "aioprefetch: s3fs: not for file://"]
    assert "are needed" in run("bench", folder / "a b.txt", code=2).stderr
