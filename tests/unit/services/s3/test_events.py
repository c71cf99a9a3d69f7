"""The events of every verb, beside the record of moto's server; and that they hold no secret."""

import contextlib
from collections import Counter
from collections.abc import Callable

import aioprefetch as ap
from aioprefetch.runtime.events import Event
from aioprefetch.testing.s3_server import CountingS3Server

PART_BYTES = 5 << 20


async def test_events_of_every_verb_are_the_requests_of_the_server(
    s3_server: CountingS3Server, random_name: Callable[[], str]
) -> None:
    bucket = random_name()
    s3_server.create_bucket(bucket)
    for signing in ("header", "presigned"):
        s3_server.reset()
        seen: list[Event] = []
        op = ap.Operator.from_uri(
            f"s3://{bucket}",
            endpoint_url=s3_server.endpoint_url,
            region="us-east-1",
            signing=signing,
            part_bytes=PART_BYTES,
            access_key_id="canary-key",
            secret_access_key="canary-secret",
            session_token="canary-token",
        )
        async with op:
            op.events.subscribe(seen.append)
            await op.write("a", b"0123456789")
            await op.write("parts", bytes(PART_BYTES + 10))
            assert await op.read("a", offset=2, size=3) == b"234"
            await op.read_ranges("parts", [(0, 10), (3 << 20, (3 << 20) + 10)])
            async with op.reader("a") as reader:
                assert await reader.read_at(0, 4) == b"0123"
            await op.stat("a")
            assert not await op.exists("missing")
            assert [entry.path async for entry in op.list("")] == ["a", "parts"]
            await op.copy("a", "b")
            await op.presign("a")
            with contextlib.suppress(ap.Error):
                await op.read("missing")
            await op.delete("b")
            await op.delete(["a", "parts"])
            await op.abort_uploads()
        recorded = s3_server.requests
        ended = [event for event in seen if event.name in ("request.finished", "request.failed")]
        assert Counter(event.facts["method"] for event in ended) == Counter(request.method for request in recorded)
        assert sorted(event.facts["status"] for event in ended) == sorted(request.status for request in recorded)
        assert [event.name for event in seen].count("request.started") == len(ended) == len(recorded)
        received = sum(
            event.facts["bytes"] for event in ended if event.facts["operation"] in ("read", "list", "list_uploads")
        )
        gets = [request for request in recorded if request.method == "GET"]
        assert received == sum(request.body_bytes for request in gets)
        sent = sum(event.facts["bytes"] for event in ended if event.facts["operation"] == "write")
        assert sent == 10 + PART_BYTES + 10
        operations = {event.facts["operation"] for event in ended}
        assert operations == {
            *("read", "write", "stat", "list", "copy", "delete", "begin_upload", "complete_upload", "list_uploads"),
        }
        shown = repr([(event, event.facts) for event in seen])
        assert "canary" not in shown
        assert "X-Amz" not in shown
