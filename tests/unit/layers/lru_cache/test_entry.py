"""Names and facts of entries: what is not understood is refused, and no text of the user shows."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.cache.entry import BadEntry
from aioprefetch.cache.object_entry import decode_facts, encode_facts, is_object_name, slot_of
from aioprefetch.values import ReadHead

NAMESPACE = ("s3", "https://e", "bucket", "root", "someone")
MOMENTS = st.integers(0, 1 << 50).map(lambda number: datetime.fromtimestamp(number / 1e6, UTC))
WHOLE = ReadHead(
    start=0,
    size=9,
    total=9,
    etag="abc",
    version="v1",
    last_modified=datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
    content_type="text/plain",
)
TEXTS = st.none() | st.text(max_size=20)


@given(
    st.builds(
        ReadHead,
        start=st.just(0),
        size=st.just(9),
        total=st.just(9),
        etag=st.text(max_size=20),
        version=TEXTS,
        last_modified=st.none() | MOMENTS,
        content_type=TEXTS,
        content_encoding=TEXTS,
    )
)
def test_facts_come_back_as_they_were(whole: ReadHead) -> None:
    assert decode_facts(encode_facts(whole), 9) == whole


def test_facts_that_cannot_be_understood_are_refused() -> None:
    texts = [b"[]", b"{}", b"nonsense", b"[" * 9000, b'{"etag":1}', b"\xff", b"null"]
    texts += [
        encode_facts(replace(WHOLE, **change))
        for change in ({"etag": None}, {"etag": 5}, {"version": 1}, {"content_type": True})
    ]
    texts.append(encode_facts(WHOLE).replace(b"2024-05-06", b"2024-13-06"))
    for text in texts:
        with pytest.raises(BadEntry, match="understood"):
            decode_facts(text, 9)


def test_parts_of_an_identity_never_run_into_each_other() -> None:
    slots = [
        slot_of(("ab", "c"), "d", None),
        slot_of(("a", "bc"), "d", None),
        slot_of(("abc",), "d", None),
        slot_of(("abc",), "d", ""),
        slot_of(("abc", "d"), "", None),
        slot_of(("abc",), "", "d"),
        slot_of(("abc",), "a/\udc80/ü.parquet", None),
    ]
    assert len({slot.name for slot in slots}) == len({slot.identity for slot in slots}) == len(slots)


def test_only_names_of_entries_are_recognised() -> None:
    name = slot_of(NAMESPACE, "key", None).name
    assert is_object_name(name)
    assert "bucket" not in name
    folder, fan, rest = name.split("/")
    other_fan = "00" if fan != "00" else "01"
    for other in (rest, f"{folder}/{rest}", f"{folder}/{other_fan}/{rest}", name + "x", name.upper(), ""):
        assert not is_object_name(other)
