"""Edited JSON in a checkpoint or a state: it is read as written, or refused with a typed error."""

import copy
import json
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch.errors import Error, InvalidArgument, Unsupported, UntrustedMetadata
from aioprefetch.source.fetch.cleaning import CleaningProgress, MarkerFile, dead_files
from aioprefetch.source.state.journal import LoggedRecord, decode, encode
from aioprefetch.source.state.snapshot import RunInfo, Snapshot
from aioprefetch.source.state.store import SourceIdentity, StateMeta
from aioprefetch.source.stored_json import seal, unseal
from aioprefetch.source.values import Cursor, Diff, FetchItem, Follow, Offset, Record, SourceFile, TailAndSweep
from aioprefetch.testing.conformance.suite import checks
from tests.files.packed_files import zstd
from tests.profile import each_of

FILE = SourceFile("a/é\ud800", 10, '"e"', None, -5)
ITEMS = (FetchItem(FILE, 2, 7), FetchItem(FILE, 0, None, (0, 3)))
CURSORS: list[Cursor] = [TailAndSweep("f", "s", 2, 77, "t"), Diff(3, None, 4), Follow("id", 5, 6, None)]
BOMB = "[" * 100_000 + "]" * 100_000


def sealed(text: str) -> bytes:
    """A body that was edited, with a checksum that fits."""
    data = text.encode()
    return b'{"crc32":"%08x","body":%s}\n' % (crc32(data), data)


def record_of(text: str) -> str:
    logged = decode(zstd.compress(sealed(text)), 3, path="p")
    return record_text(logged.record, logged.previous)


def record_text(record: Record, previous: str) -> str:
    return unsealed(zstd.decompress(encode(record, previous)[0]))


def unsealed(data: bytes) -> str:
    body, _ = unseal(data, path="p")
    return json.dumps(body)


def meta_of(text: str) -> str:
    return json.dumps(StateMeta.from_json(unseal(sealed(text), path="p")[0], path="p").to_json())


def snapshot_of(text: str) -> str:
    return unsealed(Snapshot.from_bytes(sealed(text), path="p").to_bytes())


def offset_of(text: str) -> str:
    return json.dumps(Offset.from_json(json.loads(text)).to_json())


def snapshot(cursor: Cursor) -> Snapshot:
    run = RunInfo("seen/run-000000000003-0000-ab.parquet", 2, "a", "b", 99, "00000000", None)
    return Snapshot(
        "id", "w", 3, "0a", cursor, ITEMS, 5, 50, (run,), previous_seq=1, previous_runs=("seen/x",), work_seqs=(2, 3)
    )


RECORDS = [Record(3, "w", one, ITEMS, ITEMS[:1], (FILE,), (("k", 5),), files=2, bytes=15) for one in CURSORS]
META = StateMeta("id", SourceIdentity("file:///a", "*.csv", {"format": "csv"}), 1)
WRITTEN: list[tuple[Callable[[str], str], str]] = [
    *((record_of, record_text(one, "ab")) for one in RECORDS),
    *((snapshot_of, unsealed(snapshot(one).to_bytes())) for one in CURSORS),
    (meta_of, json.dumps(META.to_json())),
    (offset_of, json.dumps(Offset("id", 3, 4, 5).to_json())),
]

JUNK = [
    *(None, True, False, -1, -2, 0, 1, 2, 1.0, 2.5, float("nan"), float("inf"), 1 << 63, -(10**19), 10**400),
    *("", "zz", "3", "\udfff", [], {}, [1], ["a", 1], {"v": 1}, [[[]]], json.loads("[" * 300 + "]" * 300)),
]
# Python's own parser would make of it what it is no number of JSON for.
RAW = {"1e400": "1e400", "5000 digits": "9" * 5000, "bomb": BOMB, "a name twice": '{"v":1,"v":2}'}


def places_in(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [at, *(place for name, one in inner for place in places_in(one, (*at, name)))]


def edited(tree: Any, draw: Callable[..., Any]) -> Any:
    """A tree with something else in one place, without it, or with something more."""
    tree = copy.deepcopy(tree)
    *way, last = draw(st.sampled_from(places_in(tree)[1:]))
    holder = tree
    for name in way:
        holder = holder[name]
    how = draw(st.sampled_from(["replaced", "replaced", "removed", "more"]))
    value = draw(st.sampled_from([*JUNK, *RAW]))
    if how == "removed":
        del holder[last]
    elif how == "more" and isinstance(holder, dict):
        holder["more"] = value
    elif how == "more":
        holder.insert(last, value)
    else:
        holder[last] = value
    return tree


def as_text(tree: Any) -> str:
    text = json.dumps(tree)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text


@each_of(("read", "text"), WRITTEN)
def test_written_json_is_read(read: Callable[[str], str], text: str) -> None:
    assert read(text) == text


@checks("reliability:K26")
@settings(max_examples=600, deadline=None)
@given(st.sampled_from(WRITTEN), st.data())
def test_an_edited_tree_is_read_as_it_stands_or_refused(
    written: tuple[Callable[[str], str], str], data: st.DataObject
) -> None:
    read, text = written
    changed = as_text(edited(json.loads(text), data.draw))
    if read is offset_of and BOMB in changed:
        return  # An engine parses its checkpoint by itself.
    try:
        found = read(changed)
    except (UntrustedMetadata, Unsupported, InvalidArgument):
        return
    except ValueError:
        if read is offset_of and "9" * 5000 in changed:
            return  # The same.
        raise
    if read is offset_of:
        assert found == json.dumps({**json.loads(found), **json.loads(changed)})
    else:
        assert found == changed  # Nothing was passed over, and nothing became something else.


@each_of("body", ["5", "[]", "null", '"x"', "NaN", BOMB, "{}", "[" * 900 + "]" * 900])
@each_of("read", [record_of, snapshot_of, meta_of])
def test_a_foreign_body_is_refused(read: Callable[[str], str], body: str) -> None:
    with pytest.raises(UntrustedMetadata, match="the source's state is damaged"):
        read(body)


GOOD = Offset("id", 3, 4, 5).to_json()
WRONG_FILES: list[Any] = ["zz", None, float("inf"), 10**400, -1, 1.0, True, []]
WRONG_BYTES: list[Any] = ["5", float("nan"), 1 << 63, {}]


@checks("reliability:I20", "reliability:K26")
@each_of(
    ("change", "kind"),
    [
        *(({"files": wrong}, UntrustedMetadata) for wrong in WRONG_FILES),
        *(({"bytes": wrong}, UntrustedMetadata) for wrong in WRONG_BYTES),
        *(({"seq": wrong}, UntrustedMetadata) for wrong in ("3", None, -2, 10**400, True, 3.0)),
        *(({"state": wrong}, UntrustedMetadata) for wrong in (None, 5, ["id"])),
        *(({"v": wrong}, UntrustedMetadata) for wrong in (True, "1", 1.0, 0, None, 10**400)),
        ({"more": 1}, UntrustedMetadata),
        ({"v": 2}, Unsupported),
        ({"v": 2, "more": 1}, Unsupported),
    ],
)
def test_an_edited_offset_is_refused_by_the_name_of_its_field(change: dict[str, Any], kind: type[Error]) -> None:
    with pytest.raises(kind) as caught:
        Offset.from_json({**GOOD, **change})
    assert (caught.value.operation, len(str(caught.value)) < 500) == ("read_offset", True)


@checks("reliability:I20")
@each_of("foreign", [{}, {"partition-0": 3}, None, 5, [GOOD], "x", {"v": 1, "state": "id"}])
def test_a_foreign_offset_is_refused_as_such(foreign: Any) -> None:
    nested = foreign
    for _ in range(5000):
        nested = [nested]
    for one in (foreign, nested):
        with pytest.raises(InvalidArgument, match="not an offset of aioprefetch"):
            Offset.from_json(one)


def test_an_offset_without_totals_has_none() -> None:
    assert Offset.from_json({"v": 1, "state": "id", "seq": 3}) == Offset("id", 3)


MARKER = {"through": 3, "failed": [FILE.to_json()], "dead": [["k", "e", None]]}


@settings(max_examples=150, deadline=None)
@given(st.data())
@example(None)
async def test_an_edited_marker_of_cleaning_counts_as_none(data: st.DataObject | None) -> None:
    changed = BOMB if data is None else as_text(edited(MARKER, data.draw))
    async with ap.Operator.from_uri("memory://edited-marker") as operator:
        marker = MarkerFile(operator, "cleaned.json")
        await operator.write("cleaned.json", changed.encode())
        found = await marker.read()
        if found != CleaningProgress():
            await marker.write(found)
            again = json.loads(await operator.read("cleaned.json"))
            assert json.dumps(again) == json.dumps({**again, **json.loads(changed)})


@each_of("line", [BOMB, "5", "{}", '{"key":1,"etag":null,"version":null}', '{"key":"k","etag":[]}'])
async def test_a_list_of_files_left_out_that_was_edited_is_refused(line: str) -> None:
    async with ap.Operator.from_uri("memory://edited-lists") as operator:
        await operator.write("state/dead/000000000001-0.jsonl", line.encode())
        with pytest.raises(UntrustedMetadata, match="cannot be read"):
            await dead_files(operator, "state/", 0, 1)


def test_a_seal_keeps_its_body() -> None:
    assert unseal(seal({"a": [1, None]})[0], path="p")[0] == {"a": [1, None]}
    assert isinstance(decode(encode(RECORDS[0], "ab")[0], 3, path="p"), LoggedRecord)
