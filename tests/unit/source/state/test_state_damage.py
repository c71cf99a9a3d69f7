"""Wrong input: each is a typed error that says what to do, and nothing begins again from zero."""

import contextlib
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch.errors import (
    ConfigInvalid,
    InvalidArgument,
    PermissionDenied,
    StateConflict,
    Unsupported,
    UntrustedMetadata,
)
from aioprefetch.source.state import journal as log
from aioprefetch.source.state.journal import decode, encode
from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.state.store import SourceIdentity
from aioprefetch.source.stored_json import seal, unseal
from aioprefetch.source.values import Record, TailAndSweep
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import FaultLayer, Injection
from tests.profile import each_of
from tests.unit.source.state.stores import IDENTITY, MeanwhileLayer, add, memory, opened

LOG = "state/log/{:012}.json.zst".format


async def grown() -> tuple[ap.Operator, SourceState]:
    """A state with two snapshots behind it and records after them; the log begins above 0."""
    operator = memory()
    state = await opened(operator)
    for number in range(6):
        await add(state, *(f"k{number}{letter}" for letter in "abcdef"))
        if number in (2, 3, 4):
            await state.committed(number + 1)
            await state.compact()
    await state.aclose()
    return operator, state


async def refused(operator: ap.Operator, kind: type[ap.Error], match: str) -> None:
    """Writers and readers are refused alike, and nothing is written."""
    before = {entry.path: entry.etag async for entry in operator.list("state/", recursive=True)}
    for writer in (True, False):
        with pytest.raises(kind, match=match) as caught:
            await opened(operator, writer=writer)
        assert caught.value.context["state"] == f"{operator.info.url}/state/"
        assert caught.value.status == "permanent"
    assert {entry.path: entry.etag async for entry in operator.list("state/", recursive=True)} == before


async def edit(operator: ap.Operator, path: str, change: Any) -> None:
    """Change the fields of a sealed file and seal it again."""
    body, _ = unseal(await operator.read(path), path=path)
    body.update(change)
    await operator.write(path, seal(body)[0])


async def first_run(operator: ap.Operator) -> str:
    body, _ = unseal(await operator.read("state/snapshot.json"), path="")
    return "state/" + str(body["runs"][0][0])


async def test_the_format_with_flags_of_conditions_is_still_read() -> None:
    """Format 1 of ``meta.json``, also that of a store which ignored conditions at that time."""
    for honoured in (True, False):
        operator, _ = await grown()
        await edit(operator, "state/meta.json", {"v": 1, "creates": honoured, "replaces": honoured})
        assert set(await (await opened(operator)).index.find(["k0a", "k5f", "z"])) == {"k0a", "k5f"}
        await edit(operator, "state/meta.json", {"creates": None})
        await refused(operator, UntrustedMetadata, "true or false is needed")


@checks("reliability:P12")
@pytest.mark.parametrize("name", ["meta.json", "snapshot.json"])
async def test_a_newer_format_is_left_alone(name: str) -> None:
    operator, _ = await grown()
    await edit(operator, f"state/{name}", {"v": 3})
    await refused(operator, Unsupported, "format 3.*update")


async def test_a_record_of_a_newer_format_is_left_alone() -> None:
    operator, _ = await grown()
    sealed, _ = seal({"v": 7, "previous": "", "record": {}})
    await operator.write(LOG(6), pa.Codec("zstd").compress(sealed, asbytes=True))
    await refused(operator, Unsupported, "format 7")


@pytest.mark.parametrize(
    ("identity", "match"),
    [
        (SourceIdentity("memory://other", "*.jsonl", {"format": "jsonl"}), "url was 'memory://bucket/landing' and is"),
        (SourceIdentity(IDENTITY.url, "*.csv", {"format": "jsonl"}), r"glob was '\*.jsonl' and is '\*.csv'"),
        (SourceIdentity(IDENTITY.url, "*.jsonl", {"format": "csv"}), "option 'format' was 'jsonl' and is 'csv'"),
        (SourceIdentity(IDENTITY.url, "*.jsonl", {}), "option 'format' was 'jsonl' and is None"),
    ],
)
async def test_the_state_of_another_source_is_refused(identity: SourceIdentity, match: str) -> None:
    operator, _ = await grown()
    with pytest.raises(StateConflict, match=match):
        await opened(operator, identity=identity)


@checks("reliability:P11")
@each_of("name", ["meta.json", "snapshot.json", "log/000000000006.json.zst"])
@each_of("how", ["cut", "edited", "empty", "replaced"])
async def test_a_truncated_or_edited_manifest_is_noticed(name: str, how: str) -> None:
    operator, _ = await grown()
    path = f"state/{name}"
    data = await operator.read(path)
    middle = len(data) // 2
    changed = {
        "cut": data[:middle],
        "edited": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "empty": b"",
        "replaced": b'{"v":1}',
    }[how]
    await operator.write(path, changed)
    await refused(operator, UntrustedMetadata, "damaged")


@checks("reliability:P21")
async def test_a_record_of_another_history_is_noticed() -> None:
    operator, _ = await grown()
    record = decode(await operator.read(LOG(5)), 5, path="").record
    data, _ = encode(Record(5, record.writer, record.cursor, items=record.items[:1]), "00000000")
    await operator.write(LOG(5), data)
    await refused(operator, UntrustedMetadata, "does not precede snapshot.json|does not follow")
    await operator.write(LOG(5), await operator.read(LOG(6)))
    await refused(operator, UntrustedMetadata, "record 6 under the name of record 5")


async def test_the_newest_record_of_another_history_is_noticed() -> None:
    """The snapshot was made after this number, and no later record says that it was exchanged."""
    operator, _ = await grown()
    record = decode(await operator.read(LOG(5)), 5, path="").record
    await operator.write(LOG(5), encode(record, "00000000")[0])
    await operator.delete(LOG(6))
    await refused(operator, UntrustedMetadata, "record 5 does not precede snapshot.json")


async def test_a_newer_record_of_another_history_is_noticed() -> None:
    operator, _ = await grown()
    record = decode(await operator.read(LOG(6)), 6, path="").record
    await operator.write(LOG(6), encode(record, "00000000")[0])
    await refused(operator, UntrustedMetadata, "record 6 does not follow the record before it")


@checks("reliability:P21")
@pytest.mark.parametrize("seq", [5, 6])
async def test_a_gap_in_the_log_is_noticed(seq: int) -> None:
    operator, _ = await grown()
    await add(await opened(operator), "later")
    await operator.delete(LOG(seq))
    await refused(operator, UntrustedMetadata, f"record {seq} is missing")


@checks("reliability:P11")
async def test_a_log_that_was_removed_is_noticed() -> None:
    operator, _ = await grown()
    await operator.delete_all("state/log/")
    await refused(operator, UntrustedMetadata, "record 5 is missing")


@checks("reliability:P11")
async def test_a_missing_meta_is_no_new_state() -> None:
    operator, _ = await grown()
    await operator.delete("state/meta.json")
    await refused(operator, UntrustedMetadata, r"meta.json is missing, although log/\d+.json.zst is there")


async def test_a_state_that_is_made_while_another_one_looks_for_it_is_not_taken_for_damaged() -> None:
    """The look at the meta comes before all of it was made, the one at the rest after that."""
    base = memory()
    made: list[SourceState] = []

    async def make() -> None:
        if not made:
            made.append(await opened(base))

    state = await opened(base.layer(MeanwhileLayer("list", make)))
    assert state.uuid == made[0].uuid
    with pytest.raises(StateConflict):
        await add(made[0], "a")
    await add(state, "b")


async def test_a_missing_snapshot_is_noticed_and_the_one_before_it_serves() -> None:
    operator, _ = await grown()
    await operator.delete("state/snapshot.json")
    await refused(operator, UntrustedMetadata, "snapshot-000000000004.json is the one before it")
    await operator.copy("state/snapshot-000000000004.json", "state/snapshot.json")
    state = await opened(operator)
    assert len(await state.index.page("", count=100)) == 36
    await state.aclose()


async def test_the_snapshot_before_serves_however_many_records_came_since() -> None:
    operator = memory()
    state = await opened(operator)
    for number in range(20):
        await add(state, f"k{number:02}")
        if number in (4, 18):
            await state.committed(number + 1)
            await state.compact()
    await operator.copy("state/snapshot-000000000005.json", "state/snapshot.json")
    again = await opened(operator)
    assert len(await again.index.page("", count=100)) == 20


async def test_a_missing_snapshot_is_noticed_though_all_records_are_there() -> None:
    operator = memory()
    state = await opened(operator)
    await add(state, "a")
    await operator.delete("state/snapshot.json")
    await refused(operator, UntrustedMetadata, "snapshot.json is missing")


async def test_the_snapshot_of_another_state_is_noticed() -> None:
    operator, _ = await grown()
    await edit(operator, "state/snapshot.json", {"state": "other"})
    await refused(operator, UntrustedMetadata, "of the state other")


async def test_overlapping_runs_are_noticed() -> None:
    operator, _ = await grown()
    body, _ = unseal(await operator.read("state/snapshot.json"), path="")
    await edit(operator, "state/snapshot.json", {"runs": body["runs"][::-1]})
    await refused(operator, UntrustedMetadata, "overlap")


@pytest.mark.parametrize("how", ["missing", "cut", "edited"])
async def test_a_missing_or_edited_run_is_noticed_when_it_is_read(how: str) -> None:
    operator, _ = await grown()
    path = await first_run(operator)
    data = await operator.read(path)
    if how == "missing":
        await operator.delete(path)
    else:
        await operator.write(path, data[:-5] if how == "cut" else data[:20] + b"?" + data[21:])
    for writer in (True, False):
        state = await opened(operator, writer=writer)
        for look in (state.index.page("", count=5), state.index.find(["k0a"])):
            with pytest.raises(UntrustedMetadata, match=r"missing, with|differs from"):
                await look
        await state.aclose()


async def test_a_compaction_that_meets_damage_writes_nothing() -> None:
    operator, _ = await grown()
    await operator.delete(await first_run(operator))
    state = await opened(operator)
    await add(state, "k0a")
    assert state.head is not None
    await state.committed(state.head.seq)
    before = await operator.read("state/snapshot.json")
    with pytest.raises(UntrustedMetadata, match="names a run that is missing"):
        await state.compact()
    assert await operator.read("state/snapshot.json") == before
    await state.aclose()


async def test_a_store_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ConfigInvalid, match="does not support write, list, delete"):
        await opened(ap.Operator.from_uri("https://example.invalid/base/"))
    plan = (Injection(operation="write", times=None, error=PermissionDenied),)
    with pytest.raises(PermissionDenied):
        await opened(memory().layer(FaultLayer(plan)))


async def test_invalid_arguments_are_refused() -> None:
    for directory in ("state", "/state/", None):
        with pytest.raises(InvalidArgument, match="directory"):
            await SourceState.open(memory(), directory, IDENTITY, first=TailAndSweep())  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="identity"):
        await SourceState.open(memory(), "", None, first=TailAndSweep())


def test_the_memory_for_a_record_follows_from_its_contents() -> None:
    data, _ = encode(Record(3, "w", TailAndSweep("a")), "")
    tracemalloc.start()
    try:
        decode(data, 3, path="p")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_record_that_is_too_long_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = encode(Record(3, "w", TailAndSweep("a" * 1000)), "")
    decode(data, 3, path="p")
    monkeypatch.setattr(log, "RECORD_BYTES_MAX", 1000)
    with pytest.raises(UntrustedMetadata, match="longer than 1000 bytes"):
        decode(data, 3, path="p")


@settings(deadline=None)
@given(st.binary(max_size=40), st.integers(0, 200))
def test_only_our_own_bytes_are_a_record(noise: bytes, position: int) -> None:
    data, _ = encode(Record(3, "w", TailAndSweep("a")), "12345678")
    position %= len(data)
    changed = data[:position] + noise + data[position + len(noise) :]
    if changed == data:
        return
    with contextlib.suppress(UntrustedMetadata):
        assert decode(changed, 3, path="p").record == Record(3, "w", TailAndSweep("a"))


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda one: st.lists(one, max_size=4)))
def test_sealed_json_is_unsealed(body: Any) -> None:
    data, crc = seal(body)
    assert unseal(data, path="p") == (body, crc)
    with pytest.raises(UntrustedMetadata):
        unseal(data + b" ", path="p")
