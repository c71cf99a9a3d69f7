"""Directory buckets (S3 Express): their sessions, what is signed by them and what is not, checks, and renames."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from aioprefetch.errors import (
    AlreadyExists,
    ConditionNotMatch,
    CredentialsExpired,
    Error,
    InvalidArgument,
    IsADirectory,
    IsSameFile,
    NotFound,
    PermissionDenied,
    ProtocolError,
    Unavailable,
    Unsupported,
)
from aioprefetch.services.s3.key_source import session_seconds
from aioprefetch.values import AbortUploadRequest, CopyPartRequest, PresignRequest, RenameRequest, WriteRequest
from tests.stores.faulty_bucket import PAGE
from tests.stores.key_server import PART, Asked, Bent, KeyServer, Said, error

DATA = b"x" * PART + b"end"
NOW = datetime(2030, 1, 1, tzinfo=UTC)


class ExpressServer(KeyServer):
    """A directory bucket: its requests need a session, but for the one that begins it, and for copies."""

    bucket = "bkt--usw2-az1--x-s3"

    def __init__(self, objects: dict[str, bytes] | None = None, *bent: Bent) -> None:
        super().__init__(objects, *bent)
        self.sessions = 0

    def done(self, asked: Asked) -> Said:
        scope = asked.headers["authorization"].partition("Credential=")[2].partition(",")[0].split("/")
        assert scope[2:] == ["us-east-1", "s3express", "aws4_request"]
        is_own = asked.verb in ("session", "copy", "copypart")
        assert (scope[0] == "id") == is_own
        if not is_own:
            assert "x-amz-security-token" not in asked.headers
            assert asked.headers["x-amz-s3session-token"] == f"token {scope[0]}"
            assert "x-amz-s3session-token" in asked.headers["authorization"]
            if scope[0] != f"S{self.sessions}":
                return error(400, "ExpiredToken")
        if asked.verb == "deletes":
            assert "content-md5" not in asked.headers
            assert asked.headers["x-amz-sdk-checksum-algorithm"] == "CRC32"
            assert len(asked.headers["x-amz-checksum-crc32"]) == 8
        return super().done(asked)

    def _session(self, asked: Asked) -> Said:
        assert (asked.key, asked.query["session"]) == ("", [""])
        self.sessions += 1
        return session(f"S{self.sessions}")

    def _rename(self, asked: Asked) -> Said:
        source = unquote(asked.headers["x-amz-rename-source"]).removeprefix(f"/{self.bucket}/")
        if source not in self.objects:
            return error(404, "NoSuchKey")
        wanted = asked.headers.get("x-amz-rename-source-if-match", "").strip('"')
        if wanted not in ("", self.etag(self.objects[source])):
            return error(412, "PreconditionFailed")
        if (refused := self.refused(asked.key, asked.headers)) is not None:
            return refused
        self.put(asked.key, self.objects.pop(source))
        return Said(200)


def session(name: str, end: datetime | None = None) -> Said:
    """The keys of a session; without an ``end`` they live for five minutes."""
    rows = {"SessionToken": f"token {name}", "SecretAccessKey": "secret", "AccessKeyId": name}
    if end is not None:
        rows["Expiration"] = end.isoformat().replace("+00:00", "Z")
    text = "".join(f"<{field}>{value}</{field}>" for field, value in rows.items())
    namespace = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    return Said(
        200, f"<CreateSessionResult {namespace}><Credentials>{text}</Credentials></CreateSessionResult>".encode()
    )


async def test_every_request_has_the_keys_that_it_takes() -> None:
    """One session serves them all; copies go by the keys of the recipe."""
    async with ExpressServer({"a": b"one", "b": b"two"}) as server, server.operator() as op:
        assert await op.read("a") == b"one"
        assert (await op.stat("a")).size == 3
        assert [entry.path async for entry in op.list("")] == ["a", "b"]
        await op.write("k", b"new")
        await op.write("parts", DATA)
        await op.copy("a", "c")
        await op.delete("c")
        await op.delete(["a", "b"])
        await op.move("k", "moved")
        assert server.objects == {"parts": DATA, "moved": b"new"}
        assert server.sessions == 1
        assert server.verbs[0] == "session"
        expected = {"session", "get", "head", "list", "put", "begin", "part", "complete", "copy", "delete", "deletes"}
        assert {*server.verbs} == expected | {"rename"}


async def test_a_part_is_copied_by_the_keys_of_the_recipe() -> None:
    async with ExpressServer({"a": b"one"}) as server, server.operator() as op:
        accessor = op.accessor()
        upload = await accessor.begin_upload(WriteRequest(path="k"))
        await accessor.copy_part(CopyPartRequest(path="k", upload_id=upload, number=1, source="a", start=0, end=3))
        await accessor.abort_upload(AbortUploadRequest(path="k", upload_id=upload))
        assert server.verbs == ["session", "begin", "copypart", "abort"]


async def test_first_callers_share_one_session() -> None:
    async with ExpressServer({"a": b"one"}) as server, server.operator() as op:
        assert await asyncio.gather(*(op.read("a") for _ in range(10))) == [b"one"] * 10
        assert server.sessions == 1


async def test_a_session_that_the_store_has_ended_is_followed_by_another() -> None:
    """For a read, whose signature was kept, and for a write; once."""
    async with ExpressServer({"a": b"one"}) as server, server.operator() as op:
        assert await op.read("a") == b"one"
        for number in (1, 3):
            server.sessions += 1  # The name of the last one is another than that of the keys.
            await (op.read("a") if number == 1 else op.write("k", b"x"))
            assert server.sessions == number + 2
        server.bent = [Bent("get", error(400, "ExpiredToken"), times=99)]
        with pytest.raises(CredentialsExpired):
            await op.read("other")


class Clock:
    """The time of the loop as ``now`` of a runtime."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.ahead_seconds = 0.0

    def __call__(self) -> float:
        return self._now() + self.ahead_seconds


@pytest.fixture
async def clock() -> Clock:
    """The clock of the loop, which a test puts forward."""
    loop = asyncio.get_running_loop()
    clock = Clock(loop.time)
    loop.time = clock  # type: ignore[method-assign]
    return clock


@pytest.mark.parametrize("seconds", [100, 170])
async def test_a_session_is_used_while_it_lives(clock: Clock, seconds: float) -> None:
    async with ExpressServer({"a": b"one"}) as server, server.operator() as op:
        await op.read("a")
        clock.ahead_seconds += seconds
        await op.read("a")
        await op.write("k", b"x")
        assert server.sessions == 1


async def test_a_session_is_renewed_before_its_end(clock: Clock) -> None:
    """In the background first, and waited for in the last minute. No read uses a signature of an older one."""
    async with ExpressServer({"a": b"one"}) as server, server.operator() as op:
        await op.read("a")
        clock.ahead_seconds += 200
        await op.write("k", b"x")
        assert "Credential=S1/" in server.asked[-1].headers["authorization"]
        while "Credential=S2/" not in server.asked[-1].headers["authorization"]:
            await op.write("k", b"x")
        for _ in range(4):
            clock.ahead_seconds += 245
            assert await op.read("a") == b"one"
        assert server.sessions == 6


async def test_a_session_that_cannot_begin() -> None:
    """The refusal is that of the request, which is named; what may pass is tried again."""
    async with ExpressServer({"a": b"one"}) as server, server.operator() as op:
        server.bent = [Bent("session", error(403, "AccessDenied"))]
        with pytest.raises(PermissionDenied) as denied:
            await op.read("a")
        assert (denied.value.operation, denied.value.path) == ("read", "a")
        server.bent = [Bent("session", error(503, "SlowDown"))]
        assert await op.read("a") == b"one"


@pytest.mark.parametrize(
    "said", [Said(200, PAGE), Said(200), session(""), Said(501), error(405, "MethodNotAllowed")], ids=str
)
async def test_a_store_of_ones_own_may_have_no_sessions(said: Said) -> None:
    """The keys of the recipe stand for those of a session, and it is asked once."""

    class Plain(KeyServer):
        bucket = ExpressServer.bucket

    async with Plain({"a": b"one"}, Bent("session", said, times=99)) as server, server.operator() as op:
        assert await op.read("a") == b"one"
        await op.write("k", b"x")
        assert server.verbs.count("session") <= 2  # What may pass is tried again.
        assert {asked.headers["authorization"].partition("Credential=")[2][:3] for asked in server.asked} == {"id/"}


@pytest.mark.parametrize(
    ("end", "now", "seconds"),
    [
        (None, NOW, 240.0),
        (NOW + timedelta(minutes=5), None, 240.0),
        (NOW + timedelta(minutes=5), NOW, 240.0),
        (NOW + timedelta(hours=1), NOW, 240.0),
        (NOW + timedelta(seconds=100), NOW, 80.0),
        (NOW - timedelta(seconds=1), NOW, 0.0),
    ],
)
def test_how_long_a_session_is_used(end: datetime | None, now: datetime | None, seconds: float) -> None:
    """Never for longer than four of five minutes, by the clock of the store."""
    assert session_seconds(end, now) == seconds


async def test_a_short_session_ends_when_it_says() -> None:
    """By the date of its response, and not by the clock of this machine."""
    date = {"Date": formatdate(NOW.timestamp(), usegmt=True)}
    short = session("S9", NOW + timedelta(seconds=-5))
    bent = Bent("session", Said(200, short.body, date))
    async with ExpressServer({"a": b"one"}, bent) as server, server.operator() as op:
        server.bent.append(Bent("head", Said(200, b"", {"ETag": '"e"', "Content-Length": "3"})))
        await op.stat("a")
        await op.read("a")
        assert server.verbs == ["session", "head", "session", "get"]


async def test_a_presigned_url_is_signed_by_the_session() -> None:
    async with ExpressServer() as server, server.operator() as op:
        url = urlsplit(await op.accessor().presign(PresignRequest(path="k", method="GET")))
        query = parse_qs(url.query)
        assert query["X-Amz-S3session-Token"] == ["token S1"]
        assert query["X-Amz-Credential"][0].startswith("S1/")
        assert "/us-east-1/s3express/aws4_request" in query["X-Amz-Credential"][0]
        assert "X-Amz-Security-Token" not in query


async def test_what_repeats_the_request_shows_no_key_of_the_session() -> None:
    def repeated(asked: Asked, right: Said) -> Said:
        text = f"<Error><Code>InvalidRequest</Code><Message>{asked.headers}</Message></Error>"
        return Said(400, text.encode())

    async with ExpressServer({"a": b"one"}, Bent("put", repeated)) as server, server.operator() as op:
        with pytest.raises(InvalidArgument) as refused:
            await op.write("k", b"x")
        assert "it says" in str(refused.value)
        assert "token S1" not in str(refused.value)


# --- renames ----------------------------------------------------------------------------------------------------------


async def test_a_move_is_one_rename() -> None:
    async with ExpressServer({"a b+é": b"one", "x": b"old"}) as server, server.operator() as op:
        etag = (await op.stat("a b+é")).etag
        server.asked.clear()
        moved = await op.move("a b+é", "x", if_match=etag)
        assert (moved.path, moved.size) == ("x", 3)
        assert server.objects == {"x": b"one"}
        assert server.verbs == ["rename", "head"]
        assert op.statistics["object_rename_request"] == 1


REFUSED: list[tuple[type[Error], dict[str, Any]]] = [
    (AlreadyExists, {"path": "a", "target": "b", "if_not_exists": True}),
    (ConditionNotMatch, {"path": "a", "target": "b", "if_match": "another"}),
    (IsSameFile, {"path": "a", "target": "a"}),
    (IsADirectory, {"path": "a", "target": "b/"}),
    (NotFound, {"path": "none", "target": "b"}),
]


@pytest.mark.parametrize(("kind", "fields"), REFUSED, ids=lambda given: getattr(given, "__name__", ""))
async def test_a_rename_that_is_refused_changes_nothing(kind: type[Error], fields: dict[str, Any]) -> None:
    async with ExpressServer({"a": b"one", "b": b"two"}) as server, server.operator() as op:
        with pytest.raises(kind) as refused:
            await op.accessor().rename(RenameRequest(**fields))
        assert refused.value.operation == "rename"
        assert server.objects == {"a": b"one", "b": b"two"}


async def test_a_rename_whose_response_is_lost_is_not_repeated() -> None:
    """The second one would find nothing."""
    lost = Bent("rename", Said(200, None), deed=True)
    async with ExpressServer({"a": b"one"}, lost) as server, server.operator() as op:
        with pytest.raises((Unavailable, ProtocolError)):
            await op.accessor().rename(RenameRequest(path="a", target="b"))
        assert server.objects == {"b": b"one"}
        assert server.verbs.count("rename") == 1


async def test_other_buckets_are_not_renamed_in() -> None:
    async with KeyServer({"a": b"one"}) as server, server.operator() as op:
        assert not op.capability.rename
        with pytest.raises(Unsupported):
            await op.accessor().rename(RenameRequest(path="a", target="b"))
