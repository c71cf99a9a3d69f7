"""``doctor --conformance``: the checks of a store that is in use, what it leaves there, and what it says."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.operator.operator import Operator
from aioprefetch.sync import BlockingOperator
from aioprefetch.testing.bucket import Answer, Call
from tests.probes.programs import completed, run_program
from tests.stores.faulty_bucket import FaultyBucket
from tests.stores.rclone_server import RcloneS3Server
from tests.unit.cli.commands import Bucket, objects, run
from tests.unit.cli.test_processes import start

# What the bucket of verbs in memory does not keep, or lists wrongly.
NOT_KEPT = {
    *("test_write_content_headers", "test_write_user_metadata", "test_writer_in_parts_keeps_what_describes"),
    *("test_writer_uploads_left_behind_are_removed", "test_presigned_headers_of_the_response"),
}


def failed(report: Any) -> set[str]:
    return {check["check"] for check in report["checks"] if check["outcome"] == "failed"}


@pytest.fixture
def lead_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], dict[str, str]]:
    """Lets commands find a server by variables."""

    def lead(server: Any) -> dict[str, str]:
        names = ("endpoint_url", "region", "access_key_id", "secret_access_key")
        options = server.options if isinstance(server, FaultyBucket) else {n: getattr(server, n) for n in names}
        variables = {f"AIOPREFETCH_{name.upper()}": options[name] for name in names}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return variables

    return lead


def test_nothing_is_sent_before_yes(bucket: Bucket) -> None:
    bucket.put(k=b"1")
    said = run("doctor", "--conformance", bucket.url(), code=2).output
    assert f"below {bucket.url()}aioprefetch-" in said
    assert "give --yes as well" in said
    assert bucket.server.requests == []
    said = run("doctor", "--conformance", "--yes", "--lacks", "manners", bucket.url(), code=2).output
    assert "--lacks manners: there is no such trait" in said
    assert "double_slash_keys: keys with `//`" in said


def test_it_needs_no_pytest(tmp_path: Path) -> None:
    """Nor another package of the extra `testing`; and it leaves a folder as it was."""
    (tmp_path / "kept").write_bytes(b"1")
    shown = run_program(
        "import sys; sys.stderr = sys.stdout;"
        "sys.modules |= dict.fromkeys(('pytest', 'pytest_asyncio', 'hypothesis', 'moto', 'blockbuster'));"
        "from aioprefetch.cli import main;"
        f"print(main(['doctor', '--conformance', '--yes', '--lacks', 'double_slash_keys', {str(tmp_path)!r}]))"
    )
    assert "test_version_listing" in shown
    assert shown.splitlines()[-1] == "0"
    assert os.listdir(tmp_path) == ["kept"]


def test_asserts_are_needed() -> None:
    done = completed([sys.executable, "-O", "-m", "aioprefetch", *["doctor", "--conformance", "--yes", "memory://x"]])
    assert done.returncode == 2
    assert "python -O leaves out what the checks assert" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("versioned", [False, True])
def test_a_bucket_of_moto(bucket: Bucket, versioned: bool) -> None:
    """With versions too nothing is left, not even a version."""
    import boto3

    server = bucket.server
    keys = {"aws_access_key_id": server.access_key_id, "aws_secret_access_key": server.secret_access_key}
    client = boto3.client("s3", region_name=server.region, endpoint_url=server.endpoint_url, **keys)
    if versioned:
        client.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"})
    bucket.put(kept=b"1")
    lacks = ["enforces_delete_conditions", "enforces_copy_conditions", "atomic_conditions"]
    words = [word for name in lacks for word in ("--lacks", name)]
    (report,) = objects("doctor", "--conformance", "--yes", "--json", *words, bucket.url())
    assert failed(report) == set()
    assert [check["outcome"] for check in report["checks"] if check["check"] == "test_version_deletion"] == [
        "ok" if versioned else "skipped"
    ]
    assert [found["Key"] for found in client.list_object_versions(Bucket=bucket.name)["Versions"]] == ["kept"]
    assert "DeleteMarkers" not in client.list_object_versions(Bucket=bucket.name)
    client.close()


@pytest.mark.full
def test_a_bucket_of_rclone(rclone_server: RcloneS3Server, lead_to: Any, random_name: Callable[[], str]) -> None:
    """It obeys no condition of a write: each check that needs one fails, and says which trait is missing."""
    lead_to(rclone_server)
    name = random_name()
    rclone_server.create_bucket(name)
    (report,) = objects("doctor", "--conformance", "--yes", "--json", f"s3://{name}", code=1)
    assert {"test_write_if_not_exists", "test_write_if_match", "test_delete_if_match"} <= failed(report)
    assert all("--lacks " in check["text"] for check in report["checks"] if check["outcome"] == "failed")
    with BlockingOperator(Operator.from_uri(f"s3://{name}")) as operator:
        assert list(operator.list(recursive=True)) == []


@pytest.mark.full
async def test_a_store_that_gives_wrong_bytes(lead_to: Any) -> None:
    """What reads must say so, and what does not is as before."""
    async with FaultyBucket() as bucket:
        bucket.put("kept", b"1")
        lead_to(bucket)

        async def report() -> set[str]:
            words = ("doctor", "--conformance", "--yes", "--json", "s3://bucket")
            (found,) = await asyncio.to_thread(lambda: objects(*words, code=1))
            assert bucket.objects == {"kept": b"1"}
            return failed(found)

        assert await report() == NOT_KEPT

        def reversed_bytes(call: Call, deed: Callable[[], Answer]) -> Answer:
            done = deed()
            return replace(done, body=(done.body or b"")[::-1]) if done.status < 300 else done

        bucket.fault, bucket.strikes = reversed_bytes, lambda call: call.verb == "GetObject"
        spoiled = await report()
        assert {"test_read_full_read", "test_write_write", "test_seek_and_read_at_random"} <= spoiled
        assert not {"test_list_root", "test_delete_what_is_missing_succeeds"} & spoiled


async def test_what_was_written_is_removed_when_it_is_interrupted(lead_to: Any) -> None:
    async with FaultyBucket() as bucket:
        bucket.put("kept", b"1")
        lead_to(bucket)
        underway = asyncio.Event()
        bucket.on_call = lambda call: underway.set() if call.number == 100 else None
        with start("doctor", "--conformance", "--yes", "s3://bucket", **lead_to(bucket)) as process:
            await underway.wait()
            assert len(bucket.objects) > 1
            process.send_signal(signal.SIGINT)
            out, err = await asyncio.to_thread(process.communicate)
        assert process.returncode == 130, err
        assert b"Traceback" not in err
        assert b"test_" not in out
        assert bucket.objects == {"kept": b"1"}
