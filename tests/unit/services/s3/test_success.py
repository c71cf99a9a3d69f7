"""A success is its result: an ETag, a key among the deleted ones, nothing at all where S3 says nothing."""

import base64
import hashlib
import itertools
from collections.abc import Awaitable, Callable

import pytest

from aioprefetch import Operator
from aioprefetch.errors import ConditionNotMatch, Error, InvalidPath, PermissionDenied, ProtocolError, Unsupported
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import AbortUploadRequest, CopyPartRequest, CopyRequest, DeleteRequest, WriteRequest
from tests.profile import each_of
from tests.stores.faulty_bucket import PAGE
from tests.stores.key_server import HOLLOW, PART, Bent, KeyServer, Said, error

DATA = b"x" * PART + b"end"
NO_RESULT = {name: said for name, said in HOLLOW.items() if name != "lost"}


async def write(op: Operator) -> None:
    await op.write("k", b"x")


async def in_parts(op: Operator) -> None:
    await op.write("k", DATA)


async def copy(op: Operator) -> None:
    await op.copy("a", "k")


async def copy_in_parts(op: Operator) -> None:
    upload = await op.accessor().begin_upload(_written())
    part = CopyPartRequest(path="k", upload_id=upload, number=1, source="a", start=0, end=3)
    await op.accessor().copy_part(part)


async def delete(op: Operator) -> None:
    await op.delete("a")


async def abort(op: Operator) -> None:
    upload = await op.accessor().begin_upload(_written())
    await op.accessor().abort_upload(AbortUploadRequest(path="k", upload_id=upload))


def _written() -> WriteRequest:
    return WriteRequest(path="k")


VERBS: dict[str, Callable[[Operator], Awaitable[None]]] = {
    "put": write,
    "begin": in_parts,
    "part": in_parts,
    "complete": in_parts,
    "copy": copy,
    "copypart": copy_in_parts,
    "delete": delete,
    "abort": abort,
}


@checks("reliability:W01", "reliability:W02", "reliability:W03")
@each_of("verb", VERBS)
async def test_a_success_without_its_result_is_an_error(verb: str) -> None:
    """It is tried again, as a read is, and ends as an error."""
    async with KeyServer({"a": b"one"}) as server, server.operator() as op:
        for kind, said in NO_RESULT.items():
            if kind == "nothing" and verb in ("delete", "abort"):
                continue  # Some stores say no more.
            server.asked.clear()
            server.bent = [Bent(verb, said, times=100)]
            with pytest.raises(ProtocolError) as refused:
                await VERBS[verb](op)
            assert refused.value.status == "persistent"
            assert server.verbs.count(verb) >= 2
            assert server.objects == {"a": b"one"}


@checks("reliability:W01")
@each_of("verb", VERBS)
async def test_after_one_success_without_a_result_the_next_attempt_counts(verb: str) -> None:
    """Whether it was done or not. Some stores answer a deletion with nothing."""
    expected = {"put": b"x", "begin": DATA, "part": DATA, "complete": DATA, "copy": b"one"}
    async with KeyServer() as server, server.operator() as op:
        for deed, (kind, said) in itertools.product((False, True), NO_RESULT.items()):
            server.objects.clear()
            server.put("a", b"one")
            server.bent = [Bent(verb, said, deed or (verb == "delete" and kind == "nothing"))]
            await VERBS[verb](op)
            assert server.objects.get("k") == expected.get(verb)
            assert ("a" in server.objects) == (verb != "delete")


@checks("reliability:W02")
async def test_a_move_loses_nothing() -> None:
    """What was not copied, and what was not deleted, is where it was."""
    async with KeyServer({"a": b"one"}) as server, server.operator() as op:
        for kind, said in NO_RESULT.items():
            for verb in ("copy", "delete") if kind != "nothing" else ("copy",):
                server.bent = [Bent(verb, said, times=100)]
                with pytest.raises(ProtocolError):
                    await op.move("a", "b")
                assert server.objects["a"] == b"one"


@pytest.mark.parametrize("said", [Said(204), Said(200), error(404, "NoSuchKey")], ids=["204", "200", "404"])
async def test_what_a_deletion_may_be_answered(said: Said) -> None:
    async with KeyServer({"a": b"one"}, Bent("delete", said)) as server, server.operator() as op:
        await op.delete("a")
        assert server.verbs == ["delete"]


@checks("reliability:W03")
@pytest.mark.parametrize(
    "said", [Said(202), Said(206), Said(200, PAGE), Said(404, PAGE), error(404, "NoSuchBucket")], ids=str
)
async def test_what_is_no_deletion(said: Said) -> None:
    async with KeyServer({"a": b"one"}, Bent("delete", said, times=9)) as server, server.operator() as op:
        with pytest.raises(Error):
            await op.delete("a")
        assert server.objects


@pytest.mark.parametrize("etag", ['""', "", '" "'])
async def test_an_empty_etag_is_none(etag: str) -> None:
    async with KeyServer({}, Bent("put", Said(200, b"", {"ETag": etag}), times=9)) as server, server.operator() as op:
        if etag == '" "':
            await op.write("k", b"x")
            return
        with pytest.raises(ProtocolError, match="no ETag"):
            await op.write("k", b"x")


async def test_a_page_of_another_server_is_no_object() -> None:
    """A portal that answers everything with a page: nothing is there, and nothing of it is believed."""
    portal = Bent("head", Said(200, b"", {"Content-Type": "text/html"}), times=9)
    async with KeyServer({"a": b"one"}, portal) as server, server.operator() as op:
        with pytest.raises(ProtocolError, match="no ETag"):
            await op.stat("a")


# --- deletions of many ------------------------------------------------------------------------------------------------


def named(*keys: str) -> Said:
    return Said(
        200, f"<DeleteResult>{''.join(f'<Deleted><Key>{k}</Key></Deleted>' for k in keys)}</DeleteResult>".encode()
    )


@checks("reliability:W03")
@pytest.mark.parametrize("answered", ["", "ac"])
async def test_a_key_that_no_response_names_is_deleted_alone(answered: str) -> None:
    """By a store that names a part of them, and by one that is always quiet."""
    objects = dict.fromkeys("abc", b"one")
    async with KeyServer(objects, Bent("deletes", named(*answered))) as server, server.operator() as op:
        await op.delete(["a", "b", "c"])
        alone = sorted(one.key for one in server.asked if one.verb == "delete")
        assert alone == sorted({*"abc"} - {*answered})
        assert server.verbs.count("deletes") == 1


@checks("reliability:W03")
async def test_a_page_in_place_of_the_result_deletes_nothing_and_says_so() -> None:
    keys = [f"k{number}" for number in range(50)]
    bent = (Bent("deletes", Said(200, PAGE), times=99), Bent("delete", Said(200, PAGE), times=999))
    async with KeyServer(dict.fromkeys(keys, b""), *bent) as server, server.operator() as op:
        with pytest.raises(ProtocolError):
            await op.delete(keys)
        assert len(server.objects) == 50
        assert len(server.asked) < 25  # Not every key is asked for, where one answer is another server's.


LACKING = {
    "501": error(501, "NotImplemented"),
    "bare 501": Said(501),
    "405": error(405, "MethodNotAllowed"),
    "a page with 405": Said(405, PAGE),
    "Content-MD5": error(400, "MissingContentMD5"),
}


@pytest.mark.parametrize("said", LACKING.values(), ids=LACKING)
async def test_a_store_without_deletions_of_many_is_asked_once(said: Said) -> None:
    """Then each key is deleted alone, here and by all operators of the recipe on this loop."""
    bent = Bent("deletes", said, times=9)
    async with KeyServer(dict.fromkeys("abcde", b"one"), bent) as server, server.operator() as op:
        await op.delete(["a", "b", "c"])
        await op.delete(["d", "e"])
        assert server.objects == {}
        assert server.verbs.count("deletes") == 1
        assert server.verbs.count("delete") == 5


@pytest.mark.parametrize("said", LACKING.values(), ids=LACKING)
async def test_without_deletions_of_many_conditions_stay(said: Said) -> None:
    """What has another ETag stays, though the first refusal might have been for the condition."""
    bent = Bent("deletes", said, times=9)
    async with KeyServer(dict.fromkeys("abcd", b"one"), bent) as server, server.operator() as op:
        etag = (await op.stat("a")).etag or ""
        server.put("b", b"newer")
        with pytest.raises(ConditionNotMatch):
            await delete_if(op, "a", "b", a=etag, b=etag)
        assert server.objects.keys() == {"b", "c", "d"}
        with pytest.raises(ConditionNotMatch):
            await delete_if(op, "b", "c", b=etag, c=etag)
        assert server.objects.keys() == {"b", "d"}
        assert server.verbs.count("deletes") == (1 if said.status == 405 else 2)


async def test_keys_with_dots_are_never_deleted_alone() -> None:
    """Their URL is that of another object: they stay, and are reported."""
    objects = dict.fromkeys(("a", "a/../b", "b", "./c"), b"one")
    bent = Bent("deletes", error(405, "MethodNotAllowed"), times=9)
    async with KeyServer(objects, bent) as server, server.operator() as op:
        with pytest.raises(InvalidPath) as refused:
            await op.delete(["a", "a/../b", "./c"])
        assert refused.value.context["failures"] == {"a/../b": "InvalidPath", "./c": "InvalidPath"}
        assert server.objects.keys() == {"a/../b", "b", "./c"}


async def test_a_deletion_of_many_carries_the_hash_of_its_document() -> None:
    async with KeyServer(dict.fromkeys("ab", b"one")) as server, server.operator() as op:
        await op.delete(["a", "b"])
        document = server.asked[-1].body
        digest = hashlib.md5(document, usedforsecurity=False).digest()
        assert server.asked[-1].headers["content-md5"] == base64.b64encode(digest).decode()
        assert server.asked[-1].headers["x-amz-content-sha256"] == hashlib.sha256(document).hexdigest()


@checks("reliability:W09")
async def test_each_key_has_its_answer() -> None:
    """Deleted, gone, refused, and one that the response does not name, whose own deletion is refused."""
    result = Said(
        200,
        b"<DeleteResult><Deleted><Key>a</Key></Deleted><Error><Key>b</Key><Code>NoSuchKey</Code></Error>"
        b"<Error><Key>c</Key><Code>AccessDenied</Code></Error><Deleted><Key>stranger</Key></Deleted></DeleteResult>",
    )
    bent = (Bent("deletes", result), Bent("delete", error(403, "AccessDenied")))
    async with KeyServer({}, *bent) as server, server.operator() as op:
        with pytest.raises(PermissionDenied) as refused:
            await op.delete(["a", "b", "c", "d"])
        assert refused.value.context["failures"] == {"c": "PermissionDenied", "d": "PermissionDenied"}
        assert server.verbs == ["deletes", "delete"]
        assert b"<Quiet>false</Quiet>" in server.asked[0].body


async def test_one_answer_to_deletions_of_one_and_of_many() -> None:
    """It names no key and no failure: each key is deleted alone."""
    result = Said(200, b"<DeleteResult/>")
    async with KeyServer({"a": b"", "b": b""}, Bent("deletes", result)) as server, server.operator() as op:
        server.bent.append(Bent("delete", result, deed=True, times=2))
        await op.delete(["a", "b"])
        assert server.objects == {}
        server.bent = [Bent("delete", Said(200, b"<DeleteResult><Error/></DeleteResult>"), times=9)]
        with pytest.raises(ProtocolError):
            await op.delete("a")


# --- conditions -------------------------------------------------------------------------------------------------------


async def delete_if(op: Operator, *paths: str, **etags: str) -> None:
    await op.accessor().delete(DeleteRequest(path=paths[0], paths=paths, if_match=etags))


@checks("reliability:W17")
@pytest.mark.parametrize("paths", [("a",), ("a", "b", "c")])
async def test_an_object_with_another_etag_is_not_deleted(paths: tuple[str, ...]) -> None:
    async with KeyServer(dict.fromkeys("abc", b"one")) as server, server.operator() as op:
        etag = (await op.stat("a")).etag
        assert etag is not None
        server.put("a", b"newer")
        with pytest.raises(ConditionNotMatch) as refused:
            await delete_if(op, *paths, a=etag, b=etag)
        assert refused.value.path == "a"
        assert etag in str(refused.value)
        assert server.objects == {"a": b"newer"} | {key: b"one" for key in "bc" if key not in paths}
        await delete_if(op, "a", a=(await op.stat("a")).etag or "")
        assert "a" not in server.objects


REFUSALS = {
    "501": error(501, "NotImplemented"),
    "400": error(400, "NotImplemented"),
    "argument": error(400, "InvalidArgument"),
    "xml": error(400, "MalformedXML"),
    "bare": Said(501),
    "bare 400": Said(400),
}


@pytest.mark.parametrize("verb", ["delete", "deletes"])
async def test_a_store_without_the_condition_is_asked_once_with_it(verb: str) -> None:
    paths = ("a",) if verb == "delete" else ("a", "b")
    for said in REFUSALS.values():
        async with KeyServer(dict.fromkeys("abc", b"one"), Bent(verb, said)) as server, server.operator() as op:
            etags = {key: (await op.stat(key)).etag or "" for key in "abc"}
            server.asked.clear()
            await delete_if(op, *paths, **etags)
            await delete_if(op, "c", **etags)
            assert server.objects == {key: b"one" for key in "abc" if key not in (*paths, "c")}
            assert server.verbs == [verb, verb, "delete"]
            assert "if-match" in server.asked[0].headers or b"<ETag>" in server.asked[0].body
            assert not [one for one in server.asked[1:] if "if-match" in one.headers or b"<ETag>" in one.body]


async def test_keys_that_are_refused_for_the_condition_are_deleted_without_it() -> None:
    """The store says so of each key."""
    rows = b"".join(b"<Error><Key>%c</Key><Code>NotImplemented</Code></Error>" % key for key in b"ab")
    bent = Bent("deletes", Said(200, b"<DeleteResult>%s</DeleteResult>" % rows))
    async with KeyServer(dict.fromkeys("ab", b"one"), bent) as server, server.operator() as op:
        await delete_if(op, "a", "b", a="e", b="e")
        assert server.objects == {}


async def test_a_refusal_for_another_reason_keeps_the_condition() -> None:
    """The store is asked again without it only where that may be the reason; a 412 and a 403 are none."""
    codes = {b"a": b"NotImplemented", b"b": b"PreconditionFailed"}
    rows = b"".join(b"<Error><Key>%s</Key><Code>%s</Code></Error>" % each for each in codes.items())
    bent = (
        Bent("deletes", Said(200, b"<DeleteResult>%s</DeleteResult>" % rows)),
        Bent("delete", error(403, "AccessDenied")),
    )
    async with KeyServer(dict.fromkeys("abc", b"one"), *bent) as server, server.operator() as op:
        with pytest.raises(Error):
            await delete_if(op, "a", "b", a="e", b="e")
        with pytest.raises(PermissionDenied):
            await delete_if(op, "c", c="e")
        with pytest.raises(ConditionNotMatch):
            await delete_if(op, "c", c="e")
        assert server.objects.keys() == {"a", "b", "c"}


async def test_a_store_that_refuses_every_deletion_keeps_its_condition() -> None:
    """The refusal without the condition is the one that is raised, and nothing is learned from it."""
    refusing = Bent("delete", error(501, "NotImplemented"), times=2)
    async with KeyServer({"a": b"one"}, refusing) as server, server.operator() as op:
        with pytest.raises(Unsupported):
            await delete_if(op, "a", a="e")
        with pytest.raises(ConditionNotMatch):
            await delete_if(op, "a", a="e")
        assert server.objects


async def test_a_copy_is_of_the_version_and_the_etag_that_it_names() -> None:
    async with KeyServer({"a b": b"one"}) as server, server.operator() as op:
        etag = (await op.stat("a b")).etag
        accessor = op.accessor()
        await accessor.copy(CopyRequest(path="a b", target="k", if_match=etag, version="v 1"))
        asked = server.asked[-1].headers
        assert asked["x-amz-copy-source"] == "bkt/a%20b?versionId=v 1"
        assert asked["x-amz-copy-source-if-match"] == f'"{etag}"'
        upload = await accessor.begin_upload(_written())
        await accessor.copy_part(
            CopyPartRequest(
                path="k", upload_id=upload, number=1, source="a b", start=0, end=3, if_match=etag, version="v"
            )
        )
        assert server.asked[-1].headers["x-amz-copy-source"] == "bkt/a%20b?versionId=v"
        assert server.asked[-1].headers["x-amz-copy-source-if-match"] == f'"{etag}"'
        server.put("a b", b"newer")
        with pytest.raises(ConditionNotMatch, match=str(etag)):
            await accessor.copy(CopyRequest(path="a b", target="k", if_match=etag))
        assert server.objects["k"] == b"one"
