"""The index of a cache beside a plain list: order of reads, bytes, victims."""

from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.cache.index import LruIndex

NAMES = st.sampled_from("abcdef")
STEPS = st.tuples(
    st.sampled_from(["add", "add", "use", "discard"]), NAMES, st.integers(0, 50), st.integers(0, 20).map(float)
)


class Model:
    """The entries as a list of time, name and size, the least recently read first."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, str, int]] = []

    def discard(self, name: str) -> None:
        self.entries = [entry for entry in self.entries if entry[1] != name]

    def add(self, name: str, size: int, used_at: float) -> None:
        self.discard(name)
        before = [entry for entry in self.entries if entry[0] <= used_at]
        self.entries = [*before, (used_at, name, size), *self.entries[len(before) :]]

    def use(self, name: str, used_at: float) -> None:
        for _, other, size in self.entries:
            if other == name:
                self.add(name, size, max(used_at, self.entries[-1][0]))
                return


@given(st.lists(STEPS, max_size=60), st.integers(0, 200), st.integers(0, 20))
def test_the_index_behaves_like_a_list_in_the_order_of_reads(
    steps: list[tuple[str, str, int, float]], need: int, before: int
) -> None:
    index: LruIndex[str] = LruIndex()
    model = Model()
    for kind, name, size, used_at in steps:
        if kind == "add":
            known = name in index
            assert index.add(name, size, name.upper(), used_at=used_at) == (name.upper() if known else None)
            model.add(name, size, used_at)
        elif kind == "use":
            index.use(name, used_at)
            model.use(name, used_at)
        else:
            assert index.discard(name) == (name.upper() if name in [entry[1] for entry in model.entries] else None)
            model.discard(name)
        names = [entry[1] for entry in model.entries]
        assert index.items() == [(name, name.upper()) for name in names]
        assert (len(index), index.total_bytes) == (len(names), sum(entry[2] for entry in model.entries))
    freed, victims = 0, []
    for used_at, name, size in model.entries:
        if freed >= need or used_at >= before:
            break
        victims.append(name)
        freed += size
    assert index.victims(need, used_before=before) == victims


def test_an_entry_takes_its_place_by_the_time_of_its_last_read() -> None:
    """Not by the time at which it is written: a slow write does not make an entry the most recent."""
    index: LruIndex[None] = LruIndex()
    for name, used_at in (("a", 1.0), ("b", 2.0), ("d", 4.0), ("c", 3.0), ("first", 0.0)):
        index.add(name, 10, None, used_at=used_at)
    index.use("a", 5.0)
    index.use("unknown", 9.0)
    assert index.victims(99) == ["first", "b", "c", "d", "a"]
    assert index.victims(11) == ["first", "b"]
    assert index.victims(99, used_before=3.0) == ["first", "b"]
    assert index.victims(0) == []
    assert (index.get("a"), index.size("b"), index.size("x"), "b" in index, "x" in index) == (None, 10, 0, True, False)
    index.use("b", 1.0)  # The clock went back: it is the last read all the same.
    assert index.victims(99) == ["first", "c", "d", "a", "b"]
    index.add("e", 10, None, used_at=5.0)
    index.add("between", 10, None, used_at=4.5)
    assert index.victims(99) == ["first", "c", "d", "between", "a", "b", "e"]
    for name in ("e", "between"):
        index.discard(name)
    new, gone = index.differing(["b", "x"])
    assert (new, sorted(gone)) == (["x"], ["a", "c", "d", "first"])
