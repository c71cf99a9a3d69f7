"""``doctor``: what it finds on stores that are known, and what it leaves behind."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

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
