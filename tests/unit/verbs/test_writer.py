"""``op.writer`` over a store of parts: what is sent, repeated and removed, in which memory, and when it fails."""

import asyncio
import os
import sys
from typing import Any

import pytest

from aioprefetch import Operator
from aioprefetch.accessor.protocols import Accessor, WriteBody
from aioprefetch.errors import (
    AlreadyExists,
    Closed,
    ConditionNotMatch,
    Error,
    InvalidArgument,
    InvalidType,
    PermissionDenied,
    TimedOut,
    Unavailable,
)
from aioprefetch.services.memory import Memory
from aioprefetch.testing import content
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import Injection
from aioprefetch.values import CompleteUploadRequest, Metadata, PartRequest, WriteRequest
from aioprefetch.verbs.upload import ABORT_SECONDS_MAX, PARTS_AT_ONCE
from tests.stores.layer_stack import settle, was_cancelled
from tests.stores.part_store import PART_BYTES, Bed, part_bed
from tests.stores.verb_layer import VerbLayer

pytestmark = pytest.mark.virtual

DATA = bytes(range(256)) * 16  # 4096 bytes: five parts, the last one of 96 bytes.
HOUR_SECONDS = 3600.0
REQUESTS = 7  # One to begin, five parts, one to complete.


async def write_all(bed: Bed, piece_bytes: int = 300, **options: Any) -> None:
    """Write ``DATA`` as "k" in pieces."""
    async with bed.op.writer("k", **options) as writer:
        for start in range(0, len(DATA), piece_bytes):
            await writer.write(DATA[start : start + piece_bytes])


async def write_at_once(bed: Bed) -> None:
    """Write ``DATA`` as "k" from the memory of the caller."""
    await bed.op.write("k", DATA)


WAYS = (write_all, write_at_once)


@pytest.mark.parametrize("piece_bytes", [1, 300, 1000, 1001, 4096])
async def test_pieces_of_any_size_become_parts_of_one_size(piece_bytes: int) -> None:
    async with part_bed() as bed:
        await write_all(bed, piece_bytes)
        assert sorted(bed.parts.sent) == [1, 2, 3, 4, 5]
        assert len(bed.faults.requests) == REQUESTS
        assert await bed.op.read("k") == DATA


async def test_a_stream_has_its_last_pieces_too() -> None:
    """A store without parts, which gets small pieces together."""
    async with Operator(Memory()) as op:
        async with op.writer("k") as writer:
            for start in range(0, len(DATA), 300):
                await writer.write(DATA[start : start + 300])
        assert await op.read("k") == DATA


@checks("reliability:W08")
@pytest.mark.parametrize("way", WAYS)
async def test_a_request_that_fails_permanently_leaves_nothing(way: Any) -> None:
    """Whichever it is: no object, no upload, no memory, and the error is the store's."""
    for number in range(REQUESTS):
        async with part_bed([Injection(occurrence=number, error=PermissionDenied)]) as bed:
            with pytest.raises(PermissionDenied) as caught:
                await way(bed)
            assert (caught.value.operation, caught.value.path) == ("write", "k")
            assert "upload_id" not in caught.value.context
            assert bed.parts.uploads == {}
            assert not await bed.op.exists("k")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", ["call", "reply"])
async def test_a_request_that_fails_once_is_repeated_alone(way: Any, at: Any) -> None:
    """Before it takes effect and after: what was lost is the response."""
    for number in range(REQUESTS):
        async with part_bed([Injection(occurrence=number, at=at, error=Unavailable)]) as bed:
            await way(bed)
            assert await bed.op.read("k") == DATA
            assert len([one for one in bed.faults.requests if one.operation == "write"]) == REQUESTS + 1
            # The upload of which the name was lost has no parts, and can be listed.
            assert list(bed.parts.uploads.values()) == ([{}] if (number, at) == (0, "reply") else [])


async def test_a_conditional_completion_of_which_the_response_was_lost_is_not_repeated() -> None:
    async with part_bed([Injection(occurrence=REQUESTS - 1, at="reply", error=Unavailable)]) as bed:
        with pytest.raises(Unavailable) as caught:
            await write_all(bed, if_not_exists=True)
        assert "may have happened" in str(caught.value.context["gave_up"])
        assert await bed.op.read("k") == DATA


@checks("reliability:W39", "reliability:W41")
@pytest.mark.parametrize("way", WAYS)
async def test_a_write_cancelled_anywhere_leaves_all_or_nothing(way: Any) -> None:
    for suspension in range(1, 500):
        async with part_bed() as bed:
            cancelled = await was_cancelled(way(bed), suspension)
            await settle()
            assert bed.parts.uploads == {}
            assert await bed.op.exists("k") is False or await bed.op.read("k") == DATA
            assert bed.budget_bytes == 0
            if not cancelled:
                assert await bed.op.read("k") == DATA
                return
    raise AssertionError("it was never carried out to its end")


async def test_an_abort_waits_for_the_name_of_the_upload() -> None:
    """The store has begun it, and the response is on its way: without its name the upload would stay."""
    async with part_bed([Injection(occurrence=0, at="reply", delay_seconds=1.0)]) as bed:
        writing = asyncio.create_task(write_all(bed))
        await settle()
        assert list(bed.parts.uploads) == ["upload-0"]
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert bed.parts.uploads == {}


async def test_an_object_has_as_many_parts_as_the_store_takes_and_no_more() -> None:
    async with part_bed(parts_max=3) as bed:
        with pytest.raises(InvalidArgument, match="more than 3 parts"):
            await write_all(bed)
        assert bed.parts.uploads == {}
        assert not await bed.op.exists("k")
    async with part_bed(parts_max=5) as bed:
        await write_all(bed)
        assert await bed.op.read("k") == DATA


async def test_a_stream_whose_end_is_not_known_never_runs_out_of_parts() -> None:
    """From the middle on they grow."""
    data = content(4000 * PART_BYTES)
    async with part_bed(parts_max=100) as bed:
        async with bed.op.writer("k") as writer:
            for start in range(0, len(data), 10_007):
                await writer.write(data[start : start + 10_007])
            await settle()
            sizes = [len(part) for _, part in sorted(bed.parts.uploads["upload-0"].items())]
        assert await bed.op.read("k") == data
        assert sizes[:50] == [PART_BYTES] * 50
        assert PART_BYTES < sizes[50] < 10 * PART_BYTES
        assert sizes == sorted(sizes)
        assert sizes[-1] < len(data) // 8
        assert len(sizes) < 100


@checks("reliability:W08")
@pytest.mark.parametrize("is_foreign", [False, True])
async def test_an_abort_that_fails_names_the_upload(is_foreign: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Its error is not raised instead of the first one, and ``abort_uploads`` removes what is left."""
    plan = [
        Injection(operation="abort_upload", error=PermissionDenied),
        *([] if is_foreign else [Injection(occurrence=2, error=PermissionDenied)]),
    ]

    async def write(bed: Bed) -> None:
        async with bed.op.writer("k") as writer:
            await writer.write(DATA)
            await settle()
            await writer.write(DATA)
            raise ZeroDivisionError

    async with part_bed(plan) as bed:
        with pytest.raises((ZeroDivisionError, PermissionDenied)) as caught:
            await write(bed)
        if is_foreign:
            (note,) = caught.value.__notes__
            assert "upload-0" in note
            assert "abort_uploads('k')" in note
        else:
            assert isinstance(caught.value, Error)
            assert caught.value.context["upload_id"] == "upload-0"
            assert "abort_uploads('k')" in str(caught.value)
        assert "could not be removed" in caplog.text
        assert list(bed.parts.uploads) == ["upload-0"]
        assert await bed.op.abort_uploads("k") == 1
        assert bed.parts.uploads == {}


@checks("reliability:W41")
async def test_an_abort_that_hangs_is_given_up_in_time() -> None:
    async with part_bed([Injection(operation="abort_upload", hang=True)]) as bed:
        writer = bed.op.writer("k")
        await writer.write(DATA)
        started = asyncio.get_running_loop().time()
        with pytest.raises(Error) as caught:
            await writer.abort()
        assert asyncio.get_running_loop().time() - started <= ABORT_SECONDS_MAX
        assert caught.value.context["upload_id"] == "upload-0"


async def test_parts_that_hang_do_not_hold_up_an_abort() -> None:
    plan = [Injection(operation="write", occurrence=1, times=None, hang=True)]
    async with part_bed(plan) as bed:
        writer = bed.op.writer("k")
        await writer.write(DATA)
        await settle()
        assert bed.faults.in_flight == 4
        await writer.abort()
        assert bed.faults.in_flight == 0
        assert bed.parts.uploads == {}


async def test_parts_are_sent_side_by_side() -> None:
    """As many as one upload may have in flight; the caller goes on meanwhile."""
    plan = [Injection(operation="write", occurrence=1, times=None, delay_seconds=1.0)]
    data = bytes(PART_BYTES * 100)
    for source in (data, [data]):
        async with part_bed(plan) as bed:
            await bed.op.write("k", source)
            assert bed.faults.in_flight_peak == PARTS_AT_ONCE + isinstance(source, list)
            # Thirteen rounds at most, and the completion.
            assert asyncio.get_running_loop().time() <= 14 * 1.0 * (1 + isinstance(source, list))


async def test_one_slot_is_enough() -> None:
    async with part_bed(concurrency=1) as bed:
        await write_all(bed)
        assert bed.faults.in_flight_peak == 1
        assert await bed.op.read("k") == DATA


async def test_memory_for_parts_comes_from_the_budget() -> None:
    """Half of it at most: four parts beside the writer's own."""
    plan = [Injection(operation="write", occurrence=1, times=None, delay_seconds=1.0)]
    mib = 1 << 20
    async with part_bed(plan, part_bytes=mib, memory_bytes=8 * mib, block_bytes=mib) as bed:
        async with bed.op.writer("k") as writer:
            for _ in range(40):
                await writer.write(bytes(mib // 2))
                assert bed.budget_bytes <= 4 * mib
        assert bed.op.runtime().budget.peak_bytes == 4 * mib
        assert bed.faults.in_flight_peak == 5  # The last part is the writer's own.


async def test_a_writer_goes_on_by_its_own_part_while_others_hold_the_budget() -> None:
    plan = [Injection(operation="write", occurrence=1, times=None, delay_seconds=1.0)]
    mib = 1 << 20
    async with part_bed(plan, part_bytes=mib, memory_bytes=8 * mib, block_bytes=mib) as bed:
        budget = bed.op.runtime().budget
        ticket = budget.request(8 * mib, "demand")
        assert ticket.granted
        async with bed.op.writer("k") as writer:
            for _ in range(10):
                await writer.write(bytes(mib // 2))
        assert bed.faults.in_flight_peak == 1
        assert budget.peak_bytes == 8 * mib
        budget.cancel(ticket)
        assert len(await bed.op.read("k")) == 5 * mib


@checks("reliability:W15")
@pytest.mark.parametrize("options", [{"if_not_exists": True}, {"if_match": "*"}])
async def test_of_two_writers_with_a_condition_one_wins(options: dict[str, Any]) -> None:
    async with part_bed() as bed:
        if "if_match" in options:
            options = {"if_match": (await bed.op.write("k", b"first")).etag}
        writers = [bed.op.writer("k", **options) for _ in range(2)]

        async def write(number: int) -> bool:
            try:
                async with writers[number] as writer:
                    await writer.write(bytes([number]) * 2500)
            except (AlreadyExists, ConditionNotMatch):
                return False
            return True

        won = await asyncio.gather(write(0), write(1))
        assert sorted(won) == [False, True]
        assert await bed.op.read("k") == bytes([won.index(True)]) * 2500
        assert bed.parts.uploads == {}


async def test_the_object_that_must_stay_is_looked_for_at_the_end() -> None:
    """One that is written meanwhile stays if it is that one, and is replaced otherwise."""
    async with part_bed() as bed:
        for must_stay in (True, False):
            await bed.op.write("k", b"first")
            writer = bed.op.writer("k", if_none_match=(await bed.op.stat("k")).etag)
            await writer.write(bytes(2500))
            if not must_stay:
                await bed.op.write("k", b"second")
                await writer.close()
                assert await bed.op.read("k") == bytes(2500)
                continue
            with pytest.raises(ConditionNotMatch):
                await writer.close()
            assert await bed.op.read("k") == b"first"
        assert bed.parts.uploads == {}


async def test_the_description_is_that_of_the_upload_and_the_condition_that_of_its_end() -> None:
    async with part_bed() as bed:
        first = await bed.op.write("k", b"first")
        await write_all(bed, content_type="text/x", user_metadata={"a": "b"}, if_match=first.etag)
        begun, *parts, completed = bed.faults.requests[-REQUESTS:]
        assert isinstance(begun, WriteRequest)
        assert (begun.content_type, begun.user_metadata) == ("text/x", {"a": "b"})
        assert {one.number for one in parts if isinstance(one, PartRequest)} == {1, 2, 3, 4, 5}
        assert isinstance(completed, CompleteUploadRequest)
        assert completed.if_match == first.etag
        assert completed.size == len(DATA)


async def test_several_tasks_may_write_their_pieces_are_not_mixed() -> None:
    async with part_bed([Injection(operation="write", times=None, delay_seconds=0.1)]) as bed:
        async with bed.op.writer("k") as writer:
            await asyncio.gather(*(writer.write(bytes([number]) * 1500) for number in range(8)))
            assert writer.size == 12_000
        data = await bed.op.read("k")
        pieces = [data[start : start + 1500] for start in range(0, 12_000, 1500)]
        assert sorted(pieces) == [bytes([number]) * 1500 for number in range(8)]


async def test_what_is_not_bytes_changes_nothing() -> None:
    async with part_bed() as bed:
        async with bed.op.writer("k") as writer:
            await writer.write(b"a")
            for wrong in ("text", None, 5, [b"x"]):
                with pytest.raises(InvalidType):
                    await writer.write(wrong)  # type: ignore[arg-type]
            await writer.write(b"b")
        assert await bed.op.read("k") == b"ab"


@checks("reliability:W43")
async def test_a_block_that_swallows_the_error_of_a_write_writes_no_object() -> None:
    async with part_bed([Injection(occurrence=1, error=PermissionDenied)]) as bed:
        writer = bed.op.writer("k")

        async def swallow() -> None:
            async with writer:
                with pytest.raises(PermissionDenied):
                    await writer.write(DATA * 10)

        with pytest.raises(Closed, match="ended by an error"):
            await swallow()
        assert not await bed.op.exists("k")
        assert bed.parts.uploads == {}


async def test_closing_twice_and_after_an_abort() -> None:
    async with part_bed() as bed:
        writer = bed.op.writer("k")
        await writer.write(b"x")
        first = await writer.close()
        assert await writer.close() == first == writer.metadata
        with pytest.raises(Closed):
            await writer.write(b"y")
        await writer.abort()
        assert await bed.op.read("k") == b"x"
        aborted = bed.op.writer("l")
        await aborted.abort()
        with pytest.raises(Closed):
            await aborted.close()
        assert not await bed.op.exists("l")


@checks("reliability:W43")
async def test_a_writer_that_is_collected_is_aborted_and_named(unraisable: list[str]) -> None:
    async with part_bed() as bed:
        writers = [bed.op.writer("k")]
        await writers[0].write(DATA)
        await settle()
        assert len(bed.parts.uploads) == 1
        writers.clear()
        assert "'k': the file was never closed: no object is written" in unraisable.pop()
        await settle()
        assert bed.parts.uploads == {}
        assert not await bed.op.exists("k")


async def test_a_child_process_leaves_a_writer_to_its_parent() -> None:
    async with part_bed() as bed:
        writers = [bed.op.writer("k")]
        await writers[0].write(DATA)
        child = os.fork()
        if not child:
            status = 1
            try:
                sys.unraisablehook = lambda _: os._exit(2)
                writers.clear()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, child, 0))[1]) == 0
        await writers[0].close()
        assert await bed.op.read("k") == DATA


@checks("reliability:W42")
async def test_closing_the_operator_ends_a_writer_and_the_error_names_the_upload() -> None:
    async with part_bed() as bed:
        writer = bed.op.writer("k")
        await writer.write(DATA)
        await settle()
        await bed.op.aclose()
        with pytest.raises(Closed) as caught:
            await writer.close()
        assert caught.value.context["upload_id"] == "upload-0"
        assert await bed.op.abort_uploads() == 1


@checks("reliability:W46")
async def test_uploads_are_as_old_as_the_clock_of_the_runtime_says() -> None:
    async with part_bed() as bed:
        begin = WriteRequest(path="k")
        await bed.op.accessor().begin_upload(begin)
        await asyncio.sleep(HOUR_SECONDS)
        newest = await bed.op.accessor().begin_upload(begin)
        assert await bed.op.abort_uploads(older_than_seconds=3900) == 0
        assert await bed.op.abort_uploads(older_than_seconds=3300) == 1
        assert list(bed.parts.uploads) == [newest]
        await asyncio.sleep(HOUR_SECONDS)
        assert await bed.op.abort_uploads(older_than_seconds=3300) == 1


async def test_an_upload_without_a_time_counts_as_young() -> None:
    async with part_bed() as bed:
        upload_id = await bed.op.accessor().begin_upload(WriteRequest(path="k"))
        bed.parts.begun[upload_id] = None
        assert await bed.op.abort_uploads(older_than_seconds=0.001) == 0
        assert await bed.op.abort_uploads() == 1


async def test_a_moved_object_is_at_its_target_alone() -> None:
    async with part_bed() as bed:
        await bed.op.write("k", b"x")
        assert (await bed.op.move("k", "l")).path == "l"
        assert not await bed.op.exists("k")
        assert await bed.op.read("l") == b"x"


class HangingBody:
    """A stream whose abort never ends."""

    async def write(self, chunk: Any) -> None:
        """Take it."""

    async def close(self) -> Metadata:
        raise PermissionDenied("refused")

    async def abort(self) -> None:
        await asyncio.Event().wait()


class HangingLayer(VerbLayer):
    async def open_write(self, inner: Accessor, request: WriteRequest) -> WriteBody:
        return HangingBody()


@pytest.mark.parametrize("by", ["abort", "close"])
async def test_a_stream_whose_abort_hangs_is_given_up_as_soon_as_an_upload(
    by: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Operator(Memory()).layer(HangingLayer()) as op:
        writer = op.writer("k")
        await writer.write(DATA)
        await writer.write(bytes(2 << 20))
        started = asyncio.get_running_loop().time()
        if by == "abort":
            with pytest.raises(TimedOut, match="not removed within 5 seconds"):
                await writer.abort()
        else:
            with pytest.raises(PermissionDenied):
                await writer.close()
            assert "could not be removed" in caplog.text
        assert asyncio.get_running_loop().time() - started == pytest.approx(5.0)
