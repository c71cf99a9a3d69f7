"""Names and facts of entries: what is not understood is refused, and no text of the user shows."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.cache.entry import BadEntry
from aioprefetch.cache.object_entry import ObjectFacts, is_object_name, slot_of
from aioprefetch.layers.lru_cache.lookup import BypassedObjects

NAMESPACE = ("s3", "https://e", "bucket", "root", "someone")
MOMENTS = st.integers(0, 1 << 50).map(lambda number: datetime.fromtimestamp(number / 1e6, UTC))
FACTS = ObjectFacts(
    etag="abc",
    version="v1",
    last_modified=datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
    content_type="text/plain",
    filled_at=datetime(2025, 1, 1, tzinfo=UTC),
)


@given(
    st.builds(
        ObjectFacts,
        etag=st.text(max_size=20),
        version=st.none() | st.text(max_size=20),
        last_modified=st.none() | MOMENTS,
        content_type=st.none() | st.text(max_size=20),
        filled_at=MOMENTS,
    )
)
def test_facts_come_back_as_they_were(facts: ObjectFacts) -> None:
    assert ObjectFacts.decode(facts.encode()) == facts


def test_facts_that_cannot_be_understood_are_refused() -> None:
    for text in (b"[]", b"{}", b"nonsense", b"[" * 9000, b'{"etag":1}', b"\xff", b"null"):
        with pytest.raises(BadEntry, match="understood"):
            ObjectFacts.decode(text)
    for change in ({"etag": None}, {"etag": 5}, {"version": 1}, {"content_type": True}):
        with pytest.raises(BadEntry, match="understood"):
            ObjectFacts.decode(replace(FACTS, **change).encode())
    with pytest.raises(BadEntry, match="understood"):
        ObjectFacts.decode(FACTS.encode().replace(b"2025-01-01", b"2025-13-01"))


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


def test_bypassed_objects_are_bounded_and_forgotten_when_they_change() -> None:
    bypassed = BypassedObjects(names_max=2)
    bypassed.remember("a", 10, "x")
    bypassed.remember("b", 10, "x")
    assert "a" in bypassed
    bypassed.remember("c", 10, "x")
    assert "b" not in bypassed
    bypassed.check("a", 10, "x")
    bypassed.check("unknown", 1, None)
    assert "a" in bypassed
    bypassed.check("a", 11, "x")
    assert "a" not in bypassed
    bypassed.forget("c")
    assert "c" not in bypassed
