"""Objects that change, vanish or cannot be distinguished while they are read: never bytes of two versions."""

from collections.abc import Callable
from typing import Any

import pytest

from aioprefetch.errors import (
    ConditionNotMatch,
    NotFound,
    ObjectChanged,
    ProtocolError,
    RangeNotSatisfied,
    Unavailable,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.testing import CountingS3Server, Fault, ReceivedRequest, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import assert_same_bytes, content
from tests.reliability.scripted import LENGTH, OFFSET, SIZE, Scripted, Serve, always, once

CUT = 20_000
LAST = OFFSET + LENGTH - 1
BLOCK_BYTES = 16 << 10
NEW = content(SIZE, version=1)
BLOCKS = {"operator_options": {"concurrency": 1, "block_bytes": BLOCK_BYTES}}


def before_request(index: int, act: Callable[[], object]) -> Rule:
    """A rule that changes the store when a request arrives, and the response not at all. It goes before others."""

    def matches(request: ReceivedRequest) -> bool:
        if request.index == index:
            act()
        return False

    return Rule(fault=Fault(), matches=matches, times=None)


def overwrite(scripted: Scripted, data: bytes = NEW) -> None:
    """Replace the object, and so its ETag."""
    scripted.server.objects["bucket/k"] = data


@checks("reliability:S21")
async def test_another_total_than_that_of_the_pinned_version(serve: Serve) -> None:
    """The first response tells the size; a later one that tells another is of another object, whatever its ETag."""
    async with serve(**BLOCKS) as scripted, scripted.operator.reader("k", policy="random") as reader:
        await reader.read_at(0, 10)
        scripted.server.add(always(Fault(content_range=f"bytes {OFFSET}-{LAST}/{SIZE + 1}")))
        with pytest.raises(ObjectChanged):
            await reader.read_at(OFFSET, LENGTH)
        scripted.server.assert_requests("GET", "GET")


@checks("reliability:S21")
async def test_another_total_in_the_middle_of_a_read(serve: Serve) -> None:
    """Even with the same ETag."""
    other = Fault(content_range=f"bytes {OFFSET + CUT}-{LAST}/{SIZE + 1}")
    async with serve(once(Fault(close_after_bytes=CUT)), once(other, 1)) as scripted:
        await scripted.fail(ObjectChanged, requests=2)


@pytest.mark.parametrize("size", [SIZE + 1, 1 << 40])
@checks("reliability:S63")
async def test_a_head_with_too_large_a_size(serve: Serve, size: int) -> None:
    """A size that is passed to a reader may be too small, and never too large; nothing is allocated for it."""
    lie = Rule(fault=Fault(headers={"Content-Length": str(size)}), times=None, method="HEAD")
    async with serve(lie) as scripted:
        meta = await scripted.operator.stat("k")
        assert meta.size == size
        async with scripted.operator.reader("k", size=meta.size, etag=meta.etag) as reader:
            with pytest.raises(RangeNotSatisfied):
                await reader.read_exactly_at(0, size)
        scripted.server.assert_requests("HEAD", "GET")


@checks("reliability:S63")
async def test_a_head_that_tells_another_size_than_the_responses(serve: Serve) -> None:
    """Where a reader learns the size by itself it comes from the bytes' own answer, and no HEAD is believed."""
    lie = Rule(fault=Fault(headers={"Content-Length": "10"}), times=None, method="HEAD")
    async with serve(lie) as scripted, scripted.operator.reader("k") as reader:
        assert await reader.ensure_size() == SIZE
        assert_same_bytes(await reader.read(), scripted.data)
        assert (await scripted.operator.stat("k")).size == 10


@checks("reliability:S27")
async def test_an_object_that_vanishes_before_its_first_byte(serve: Serve) -> None:
    async with serve() as scripted:
        await scripted.operator.stat("k")
        scripted.server.add(always(Fault(status=404, code="NoSuchKey")))
        async with scripted.operator.reader("k") as reader:
            with pytest.raises(NotFound) as caught:
                await reader.read_at(OFFSET, LENGTH)
        assert (caught.value.operation, caught.value.path) == ("read", "k")
        scripted.server.assert_requests("HEAD", "GET")


@checks("reliability:S27")
async def test_an_object_that_vanishes_between_two_blocks(serve: Serve) -> None:
    async with serve(**BLOCKS) as scripted, scripted.operator.reader("k", prefetch_enabled=False) as reader:
        await reader.read_at(0, 10)
        scripted.server.add(always(Fault(status=404, code="NoSuchKey")))
        with pytest.raises(ObjectChanged):
            await reader.read_at(SIZE - 10, 10)
        scripted.server.assert_requests("GET", "GET")


@pytest.mark.parametrize("status", [404, 412])
@checks("opendal:R32", "reliability:S27", "reliability:S29")
async def test_the_rest_of_a_body_is_gone(serve: Serve, status: int) -> None:
    """Deleted or overwritten: reported once, and not asked for again."""
    async with serve(once(Fault(close_after_bytes=CUT))) as scripted:
        old = scripted.data

        def change() -> None:
            if status == 404:
                del scripted.server.objects["bucket/k"]
            else:
                overwrite(scripted)

        scripted.server.add(before_request(1, change))
        error = await scripted.fail(ObjectChanged, requests=2)
        assert error.received == CUT
        assert isinstance(error, ObjectChanged)
        assert error.expected_etag != error.actual_etag
        assert error.status == "permanent"
        overwrite(scripted, old)


@checks("opendal:R32", "reliability:S30")
async def test_the_rest_of_a_body_is_of_another_version(serve: Serve) -> None:
    """The server ignores If-Match: the ETag of its response is compared."""
    async with serve() as scripted:
        replaced = before_request(1, lambda: overwrite(scripted))
        scripted.server.add(replaced, once(Fault(close_after_bytes=CUT)), once(Fault(ignore_if_match=True), 1))
        error = await scripted.fail(ObjectChanged, requests=2)
        assert error.received == CUT
        assert scripted.server.requests[1].headers["if-match"]


@pytest.mark.parametrize("ignore", [False, True], ids=["s29-412", "s30-ignored"])
@checks("reliability:S29", "reliability:S30")
async def test_an_object_overwritten_between_two_blocks(serve: Serve, ignore: bool) -> None:
    """The old reader fails and keeps its bytes; a new one reads the new version."""
    fault = Fault(ignore_if_match=ignore)
    async with serve(always(fault), **BLOCKS) as scripted:
        old = scripted.data
        async with scripted.operator.reader("k", prefetch_enabled=False) as reader:
            assert_same_bytes(await reader.read_at(0, 10), old[:10])
            overwrite(scripted)
            with pytest.raises(ObjectChanged):
                await reader.read_at(SIZE - 10, 10)
            # The first refusal of a store is looked at once, without the condition: some stores refuse all of them.
            looks = scripted.service == "s3" and not ignore
            assert scripted.server.count("GET") == 2 + looks
            async with scripted.operator.reader("k", prefetch_enabled=False) as second:
                assert_same_bytes(await second.read_at(0, SIZE), NEW)
            await reader.reopen()
            assert_same_bytes(await reader.read_at(0, SIZE), NEW)


@pytest.mark.parametrize("fields", [{}, {"Last-Modified": None}], ids=["with time", "without time"])
@checks("reliability:S31")
async def test_no_etag_over_s3(serve_s3: Serve, fields: dict[str, None]) -> None:
    """Every object of S3 has one, and so a response without is none."""
    async with serve_s3(always(Fault(headers={"ETag": None, **fields}))) as scripted:
        await scripted.fail(ProtocolError, requests=2)


@checks("reliability:S31")
async def test_no_etag_over_http(serve_http: Serve) -> None:
    """A read that broke off begins again: time and size do not prove that the rest is of the same version."""
    no_etag = Fault(headers={"ETag": None})
    cut = Fault(headers={"ETag": None}, close_after_bytes=CUT)
    async with serve_http(once(cut), always(no_etag)) as scripted:
        await scripted.read()
        assert scripted.ranges() == [(OFFSET, LAST), (OFFSET, LAST)]


@checks("reliability:S31")
async def test_a_reader_of_http_without_etags_compares_time_and_size(serve_http: Serve) -> None:
    """They stand in for the ETag that all of its requests are held together by."""
    other_time = {"ETag": None, "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT"}
    rules = (once(Fault(headers={"ETag": None})), always(Fault(headers=other_time)))
    async with (
        serve_http(*rules, **BLOCKS) as scripted,
        scripted.operator.reader("k", prefetch_enabled=False) as reader,
    ):
        assert_same_bytes(await reader.read_at(0, 10), scripted.data[:10])
        with pytest.raises(ObjectChanged):
            await reader.read_at(SIZE - 10, 10)


@checks("reliability:S31")
async def test_neither_etag_nor_time_over_http(serve_http: Serve) -> None:
    """One response is read; one that broke off is not continued, since the rest could be of another version."""
    nothing = {"ETag": None, "Last-Modified": None}
    async with serve_http(always(Fault(headers=nothing))) as scripted:
        await scripted.read()
        scripted.server.behave()
        scripted.server.add(always(Fault(headers=nothing, close_after_bytes=CUT)))
        error = await scripted.fail(Unavailable, requests=4)
        assert (error.received, error.status) == (CUT, "persistent")
        assert set(scripted.ranges()) == {(OFFSET, LAST)}


ETAGS = {"weak": 'W/"abc"', "unquoted": "abc", "multipart": '"0123456789abcdef-5"', "odd": "\"a, b 'c'\""}


@pytest.mark.parametrize("etag", ETAGS.values(), ids=ETAGS)
@checks("reliability:S32")
async def test_etags_of_every_shape_are_compared(serve: Serve, etag: str) -> None:
    """A weak ETag is not sent, since no server may match it."""
    cut = Fault(etag=etag, close_after_bytes=CUT)
    async with serve(once(cut), always(Fault(etag=etag, ignore_if_match=True))) as scripted:
        await scripted.read()
        begin = OFFSET if etag.startswith("W/") else OFFSET + CUT  # What a weak one begins is not continued.
        assert scripted.ranges() == [(OFFSET, LAST), (begin, LAST)]
        sent = scripted.server.requests[1].headers.get("if-match")
        assert sent == (None if etag.startswith("W/") else f'"{etag.strip(chr(34))}"')


STRONG = {name: etag for name, etag in ETAGS.items() if name != "weak"}


@pytest.mark.parametrize("etag", STRONG.values(), ids=STRONG)
@checks("reliability:S32")
async def test_etags_of_every_strong_shape_tell_versions_apart(serve: Serve, etag: str) -> None:
    cut = Fault(etag=etag, close_after_bytes=CUT)
    async with serve(once(cut), always(Fault(etag='"other"', ignore_if_match=True))) as scripted:
        await scripted.fail(ObjectChanged, requests=2)


@checks("reliability:S33")
async def test_replicas_that_do_not_agree(serve: Serve) -> None:
    """Two ETags of the same bytes: the safe side is that they are two versions."""
    flapping = [once(Fault(etag=f'"{"ab"[n % 2]}"', ignore_if_match=True, close_after_bytes=CUT), n) for n in range(4)]
    async with serve(*flapping) as scripted:
        error = await scripted.fail(ObjectChanged, requests=2)
        assert isinstance(error, ObjectChanged)
        assert (error.expected_etag, error.actual_etag) == ("a", "b")


@checks("reliability:S33")
async def test_replicas_that_do_not_agree_between_blocks(serve: Serve) -> None:
    flapping = [once(Fault(etag=f'"{"ab"[n % 2]}"', ignore_if_match=True), n) for n in range(8)]
    async with (
        serve(*flapping, **BLOCKS) as scripted,
        scripted.operator.reader("k", prefetch_enabled=False) as reader,
    ):
        await reader.read_at(0, 10)
        with pytest.raises(ObjectChanged):
            await reader.read_at(SIZE - 10, 10)


@checks("reliability:S29")
async def test_a_condition_of_the_caller_stays_one(serve: Serve) -> None:
    """It did not hold before the first byte: that is a response, and not a change."""
    async with serve() as scripted:
        await scripted.fail(ConditionNotMatch, requests=1, if_match="other")


@checks("reliability:S34")
async def test_a_version_stays_readable(s3_server: CountingS3Server, random_name: Callable[[], str]) -> None:
    """Over moto, which keeps versions."""
    from tests.stores.stacks import MotoBucket

    bucket = MotoBucket(random_name(), versioned=True)
    keys: dict[str, Any] = {"access_key_id": s3_server.access_key_id, "secret_access_key": s3_server.secret_access_key}
    uri = f"s3://{bucket.name}"
    async with Operator.from_uri(uri, endpoint_url=s3_server.endpoint_url, region="us-east-1", **keys) as operator:
        old, new = content(SIZE), NEW
        version = (await operator.write("k", old)).version
        await operator.write("k", new)
        assert version is not None
        assert_same_bytes(await operator.read("k", version=version), old)
        async with operator.reader("k", version=version) as reader:
            assert_same_bytes(await reader.read_at(OFFSET, LENGTH), old[OFFSET : OFFSET + LENGTH])
        assert_same_bytes(await operator.read("k"), new)
