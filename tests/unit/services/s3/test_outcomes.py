"""A write with a condition whose response does not tell what became of it: a look at the object does."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from aioprefetch import Operator
from aioprefetch.errors import AlreadyExists, ConditionNotMatch, Error, ProtocolError, Unavailable
from aioprefetch.services.s3 import S3
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Capability, CopyPartRequest, CopyRequest, WriteRequest
from tests.profile import each_of
from tests.stores.key_server import HOLLOW, PART, Asked, Bent, KeyServer, Said, error

DATA = b"x" * PART + b"end"
SMALL = b"mine"
# Responses that tell nothing: hollow ones, lost ones, and failures.
SILENT = {**HOLLOW, "500": error(500, "InternalError"), "502": Said(502)}
VERBS = ["put", "complete"]


def data_of(verb: str) -> bytes:
    return DATA if verb == "complete" else SMALL


@checks("reliability:W04")
@each_of("verb", VERBS)
@each_of("condition", ["if_not_exists", "if_match"])
@each_of("deed", [False, True])
async def test_it_is_done_once_whatever_the_response_was(verb: str, condition: str, deed: bool) -> None:
    """Our bytes are there: success; they are not: it is sent again."""
    async with KeyServer() as server, server.operator() as op:
        for kind, said in SILENT.items():
            server.objects.clear()
            options: dict[str, Any] = {"if_not_exists": True}
            if condition == "if_match":
                server.put("k", b"old")
                options = {"if_match": (await op.stat("k")).etag}
            server.asked.clear()
            server.bent = [Bent(verb, said, deed)]
            written = await op.write("k", data_of(verb), **options, content_type="text/x")
            assert server.objects["k"] == data_of(verb), kind
            assert (written.size, written.content_type) == (len(data_of(verb)), "text/x")
            assert written.etag == (await op.stat("k")).etag
            again = 1 if verb != "complete" or not deed else 0
            assert server.verbs.count(verb) == 1 + (0 if deed else again)
            assert not server.uploads or not deed


@checks("reliability:W15")
@pytest.mark.parametrize("verb", VERBS)
async def test_an_object_of_another_is_neither_taken_for_ours_nor_overwritten(verb: str) -> None:
    """A writer came between, before or after our own write."""

    def overtaken(said: Said, asked: Asked, right: Said) -> Said:
        server.put("k", b"another")
        return said

    async with KeyServer() as server, server.operator() as op:
        for said in SILENT.values():
            for condition in ("if_not_exists", "if_match"):
                server.objects.clear()
                options: dict[str, Any] = {"if_not_exists": True}
                if condition == "if_match":
                    server.put("k", b"old")
                    options = {"if_match": (await op.stat("k")).etag}
                server.bent = [Bent(verb, partial(overtaken, said))]
                with pytest.raises(Unavailable, match="may have happened") as refused:
                    await op.write("k", data_of(verb), **options)
                assert refused.value.status == "persistent"
                assert (refused.value.operation, refused.value.path) == ("write", "k")
                assert server.objects["k"] == b"another"


@pytest.mark.parametrize("verb", VERBS)
async def test_an_old_object_that_is_gone_tells_nothing(verb: str) -> None:
    def deleted(asked: Asked, right: Said) -> Said:
        server.objects.clear()
        return HOLLOW["nothing"]

    async with KeyServer({"k": b"old"}) as server, server.operator() as op:
        server.bent = [Bent(verb, deleted)]
        with pytest.raises(Unavailable, match="may have happened"):
            await op.write("k", data_of(verb), if_match=(await op.stat("k")).etag)
        assert server.objects == {}


@checks("reliability:W04")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("look", [error(403, "AccessDenied"), Said(200, None)], ids=["403", "lost"])
async def test_where_the_look_fails_it_may_have_happened(verb: str, look: Said) -> None:
    bent = (Bent(verb, HOLLOW["nothing"], True), Bent("head", look, times=99))
    async with KeyServer({}, *bent) as server, server.operator() as op:
        with pytest.raises(Unavailable, match="may have happened"):
            await op.write("k", data_of(verb), if_not_exists=True)


@checks("reliability:W01")
@pytest.mark.parametrize("verb", VERBS)
async def test_two_hollow_responses_end_it(verb: str) -> None:
    async with KeyServer({}, Bent(verb, HOLLOW["a page"], times=99)) as server, server.operator() as op:
        with pytest.raises(ProtocolError) as refused:
            await op.write("k", data_of(verb), if_not_exists=True)
        assert refused.value.status == "persistent"
        assert server.verbs.count(verb) == 2
        assert server.objects == {}


@checks("reliability:W04")
@pytest.mark.parametrize("verb", VERBS)
async def test_a_first_write_that_comes_late_is_ours(verb: str) -> None:
    """The second one is refused for the object of the first."""
    late: list[Callable[[], Said]] = []

    def delayed(asked: Asked, right: Said) -> Said:
        late.append(lambda: server.done(asked))
        return HOLLOW["lost"]

    def arrived(asked: Asked, right: Said) -> Said:
        late.pop()()
        return server.done(asked)

    async with KeyServer({}, Bent(verb, delayed), Bent(verb, arrived)) as server, server.operator() as op:
        await op.write("k", data_of(verb), if_not_exists=True)
        assert server.objects == {"k": data_of(verb)}


@checks("reliability:W07")
@pytest.mark.parametrize("options", [{"if_not_exists": True}, {"if_match": "another"}])
async def test_a_refusal_is_believed_at_once(options: dict[str, Any]) -> None:
    """Also of the same bytes, which another client has written before."""
    async with KeyServer({"k": SMALL}) as server, server.operator() as op:
        with pytest.raises((AlreadyExists, ConditionNotMatch)):
            await op.write("k", SMALL, **options)
        assert server.verbs == ["put"]


async def test_a_store_that_asks_for_fewer_requests_has_written_nothing() -> None:
    """The same bytes of another client are not taken for ours after it."""

    def throttled(asked: Asked, right: Said) -> Said:
        server.put("k", SMALL)
        return error(503, "SlowDown")

    async with KeyServer({}) as server, server.operator() as op:
        server.bent = [Bent("put", throttled)]
        with pytest.raises(AlreadyExists):
            await op.write("k", SMALL, if_not_exists=True)
        assert server.verbs == ["put", "put"]


async def test_etags_that_are_no_digests_prove_nothing() -> None:
    async with KeyServer({}, Bent("put", HOLLOW["nothing"], True)) as server, server.operator() as op:
        server.etag = lambda data: "0" * 32
        with pytest.raises(Unavailable, match="may have happened"):
            await op.write("k", SMALL, if_not_exists=True)


@checks("reliability:W05")
async def test_a_completion_is_found_where_its_upload_is_gone() -> None:
    """Without a condition it is repeated, and the upload is gone then."""
    async with KeyServer() as server, server.operator() as op:
        for said in SILENT.values():
            server.asked.clear()
            server.bent = [Bent("complete", said, True)]
            assert (await op.write("k", DATA)).etag == (await op.stat("k")).etag
            assert server.verbs.count("complete") == 2
            server.bent = [Bent("complete", lambda asked, right: error(404, "NoSuchUpload"))]
            with pytest.raises(Error, match="upload is gone"):
                await op.write("k", DATA[:-1])


@pytest.fixture
def at_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of which is known that it looks at the condition of a copy."""
    own: Any = S3.capability

    def changed(service: S3) -> Capability:
        capability: Capability = own.fget(service)
        return replace(capability, copy_if_not_exists=True)

    monkeypatch.setattr(S3, "capability", property(changed))


def test_conditional_copies_are_known_of_aws_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other stores would overwrite; there parts have the same effect."""
    service = S3(bucket="bkt", access_key_id="a", secret_access_key="s")
    assert service.capability.copy_if_not_exists
    assert not replace(service, endpoint_url="https://minio.example").capability.copy_if_not_exists
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://minio.example")
    assert not service.capability.copy_if_not_exists


@checks("reliability:W06")
@pytest.mark.usefixtures("at_aws")
@pytest.mark.parametrize("deed", [False, True])
async def test_a_copy_that_must_not_replace_is_done_once(deed: bool) -> None:
    async with KeyServer({"a": b"one"}) as server, server.operator() as op:
        etag = (await op.stat("a")).etag
        for said in SILENT.values():
            server.objects.pop("k", None)
            server.asked.clear()
            server.bent = [Bent("copy", said, deed)]
            copy = CopyRequest(path="a", target="k", if_match=etag, size=3, if_not_exists=True)
            copied = await op.accessor().copy(copy)
            assert (copied.path, copied.etag, server.objects["k"]) == ("k", etag, b"one")
            assert server.verbs.count("copy") == 2 - deed
        assert server.asked[0].headers["if-none-match"] == "*"
        with pytest.raises(AlreadyExists):
            await op.accessor().copy(CopyRequest(path="a", target="k", if_match=etag, if_not_exists=True))
        server.put("a", b"newer")
        with pytest.raises(ConditionNotMatch, match=str(etag)):
            await op.accessor().copy(CopyRequest(path="a", target="b", if_match=etag, if_not_exists=True))


@checks("reliability:W16")
async def test_a_copy_without_the_condition_in_the_store_overwrites_nothing() -> None:
    async with KeyServer({"a": b"one", "k": b"there"}) as server, server.operator() as op:
        with pytest.raises(AlreadyExists):
            await op.copy("a", "k", if_not_exists=True)
        assert server.objects["k"] == b"there"
        assert "copy" not in server.verbs
        await op.copy("a", "new", if_not_exists=True)
        assert server.objects["new"] == b"one"


# --- uploads without a name -------------------------------------------------------------------------------------------


@checks("reliability:W05")
@pytest.mark.parametrize("kind", ["lost", "nothing", "a page", "500"])
async def test_an_upload_without_a_name_is_counted(kind: str) -> None:
    """It stays, since another client may have begun any that a listing shows."""
    seen: list[tuple[str, str]] = []
    async with KeyServer({}, Bent("begin", SILENT[kind], True)) as server, server.operator() as op:
        op.events.subscribe(lambda event: seen.append((event.name, event.path)))
        await op.write("k", DATA)
        assert op.statistics["uploads_unnamed"] == 1
        assert seen.count(("s3.upload_unnamed", "k")) == 1
        assert "abort" not in server.verbs
        assert list(server.uploads) == ["u0"]
        assert await op.abort_uploads("") == 0


@checks("reliability:W05")
async def test_what_a_lost_begin_leaves_is_found_by_a_listing_and_aborted() -> None:
    def uploads(asked: Asked, right: Said) -> Said:
        assert "uploads" in asked.query
        rows = "".join(f"<Upload><Key>k</Key><UploadId>{name}</UploadId></Upload>" for name in server.uploads)
        return Said(200, f"<R><IsTruncated>false</IsTruncated>{rows}</R>".encode())

    async with KeyServer({}, Bent("begin", HOLLOW["lost"], True), Bent("list", uploads)) as server:
        async with server.operator() as op:
            await op.write("k", DATA)
            assert (server.objects, list(server.uploads)) == ({"k": DATA}, ["u0"])
            assert await op.abort_uploads("") == 1
        assert (server.objects, server.uploads) == ({"k": DATA}, {})


async def test_a_refused_begin_leaves_no_upload_to_count() -> None:
    async with KeyServer({}, Bent("begin", error(403, "AccessDenied"))) as server, server.operator() as op:
        with pytest.raises(Error):
            await op.write("k", DATA)
        assert op.statistics["uploads_unnamed"] == 0


@checks("reliability:W41")
async def test_a_begin_that_is_cancelled_with_its_operator_is_counted() -> None:
    begun, seen = asyncio.Event(), []

    def hang(asked: Asked, right: Said) -> Said:
        begun.set()
        return HOLLOW["lost"]

    async with KeyServer({}) as server:
        server.bent = [Bent("begin", hang, times=99)]
        async with server.operator() as op:
            op.events.subscribe(lambda event: seen.append(event.name))
            write = asyncio.create_task(op.write("k", DATA))
            await begun.wait()
            write.cancel()
            with pytest.raises(asyncio.CancelledError):
                await write
        assert "s3.upload_unnamed" in seen


# --- conflicts --------------------------------------------------------------------------------------------------------

CONFLICTS = {
    "ConditionalRequestConflict": error(409, "ConditionalRequestConflict"),
    "OperationAborted": error(409, "OperationAborted"),
    "409": Said(409),
}


@pytest.mark.parametrize("verb", [*VERBS, "copy", "copypart", "delete", "deletes", "part"])
@pytest.mark.parametrize("said", CONFLICTS.values(), ids=CONFLICTS)
async def test_a_conflict_is_tried_again(verb: str, said: Said) -> None:
    """It says that nothing was written, so no look is needed; with a condition too."""
    async with KeyServer({"a": b"one", "b": b"two"}) as server, server.operator() as op:
        etag = (await op.stat("a")).etag
        calls: dict[str, list[Callable[[], Awaitable[object]]]] = {
            "copy": [lambda: op.accessor().copy(CopyRequest(path="a", target="k", if_match=etag))],
            "copypart": [lambda: in_parts(op)],
            "delete": [lambda: op.delete("a"), lambda: op.delete("b", if_match="*")],
            "deletes": [lambda: op.delete(["a", "b"])],
        }
        writes = [
            lambda: op.write("new", data_of("complete" if verb == "part" else verb), if_not_exists=True),
            lambda: op.write("a", data_of("complete" if verb == "part" else verb), if_match=etag),
            lambda: op.write("b", data_of("complete" if verb == "part" else verb)),
        ]
        for call in calls.get(verb, writes):
            server.asked.clear()
            server.bent = [Bent(verb, said, times=2)]
            await call()
            assert [one for one in server.verbs if one == verb][:3] == [verb] * 3
            assert verb == "delete" or "head" not in server.verbs


async def in_parts(op: Operator) -> None:
    accessor = op.accessor()
    upload = await accessor.begin_upload(WriteRequest(path="k"))
    await accessor.copy_part(CopyPartRequest(path="k", upload_id=upload, number=1, source="a", start=0, end=3))


@each_of("verb", VERBS)
@each_of("condition", ["none", "if_not_exists", "if_match"])
async def test_a_conflict_without_end_says_that_nothing_was_written(verb: str, condition: str) -> None:
    """``AlreadyExists`` would tell a lock that another holds it."""
    bent = Bent(verb, error(409, "ConditionalRequestConflict"), times=99)
    async with KeyServer({}, bent) as server, server.operator() as op:
        options: dict[str, Any] = {"if_not_exists": True} if condition == "if_not_exists" else {}
        if condition == "if_match":
            server.put("k", b"old")
            options = {"if_match": (await op.stat("k")).etag}
        with pytest.raises(Unavailable, match="nothing was written") as refused:
            await op.write("k", data_of(verb), **options)
        assert "may have happened" not in str(refused.value)
        assert server.verbs.count(verb) > 1
        assert server.objects == ({"k": b"old"} if condition == "if_match" else {})
