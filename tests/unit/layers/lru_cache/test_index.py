"""The index against a naive model, and the list of what is passed by."""

from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.layers.lru_cache.index import IndexEntry, LruIndex, PassedBy

CAPACITY = 100
SLOTS = st.sampled_from("abcdef")
SIZES = st.integers(1, 60)
STEPS = st.one_of(
    st.tuples(st.just("put"), SLOTS, SIZES),
    st.tuples(st.just("fail"), SLOTS, SIZES),
    st.tuples(st.just("get"), SLOTS, st.just(0)),
    st.tuples(st.just("remove"), SLOTS, st.just(0)),
    st.tuples(st.just("pop"), SLOTS, st.just(0)),
    st.tuples(st.just("rebuild"), SLOTS, SIZES),
)


def entry(slot: str, size: int) -> IndexEntry:
    return IndexEntry(slot=slot, name=f"{slot}{size}", size_bytes=size)


class Model:
    """Entries in a plain list, least recently used first."""

    def __init__(self) -> None:
        self.entries: list[IndexEntry] = []

    def of(self, slot: str) -> IndexEntry | None:
        return next((one for one in self.entries if one.slot == slot), None)

    def shrink(self, room: int) -> list[IndexEntry]:
        gone = []
        while self.entries and sum(one.size_bytes for one in self.entries) + room > CAPACITY:
            gone.append(self.entries.pop(0))
        return gone

    def add(self, new: IndexEntry) -> IndexEntry | None:
        old = self.of(new.slot)
        if old is not None:
            self.entries.remove(old)
        self.entries.append(new)
        return old


def apply(index: LruIndex, model: Model, kind: str, slot: str, size: int) -> None:
    known = model.of(slot)
    new = entry(slot, size)
    if kind in ("put", "fail"):
        assert index.fits(size)
        assert index.make_room(size) == model.shrink(size)
        assert index.used_bytes + index.reserved_bytes <= CAPACITY
        if kind == "put":
            assert index.put(new) is model.add(new)
        else:
            index.give_back(size)
    elif kind == "get":
        assert index.get(slot) is known
        if known is not None:
            model.add(known)
    elif kind == "rebuild":
        replaced = model.add(new)
        assert index.rebuild([new]) == ([replaced] if replaced else []) + model.shrink(0)
    else:
        if kind == "pop":
            assert index.pop(slot) is known
        else:
            assert index.remove(known or new) is (known is not None)
            assert not index.remove(new)
        if known is not None:
            model.entries.remove(known)


@given(st.lists(STEPS, max_size=60))
@settings(max_examples=150, deadline=None)
def test_the_index_behaves_like_a_list_and_keeps_its_bound(steps: list[tuple[str, str, int]]) -> None:
    index, model = LruIndex(CAPACITY), Model()
    for kind, slot, size in steps:
        apply(index, model, kind, slot, size)
        assert len(index) == len(model.entries)
        assert index.used_bytes == sum(one.size_bytes for one in model.entries) <= CAPACITY
        assert index.reserved_bytes == 0
    assert index.make_room(CAPACITY) == model.entries


def test_what_is_being_written_counts_and_limits_what_fits() -> None:
    index = LruIndex(CAPACITY)
    assert index.make_room(70) == []
    assert index.fits(30)
    assert not index.fits(31)
    index.give_back(70)
    assert not index.fits(101)


def test_names_that_are_passed_by_are_bounded_and_forgotten_when_the_object_changes() -> None:
    passed_by = PassedBy(names_max=2)
    passed_by.remember("a", 10, "x")
    passed_by.remember("b", 10, "x")
    assert "a" in passed_by
    passed_by.remember("c", 10, "x")
    assert "b" not in passed_by
    passed_by.check("a", 10, "x")
    passed_by.check("unknown", 1, None)
    assert "a" in passed_by
    passed_by.check("a", 11, "x")
    assert "a" not in passed_by
    passed_by.forget("c")
    assert "c" not in passed_by
