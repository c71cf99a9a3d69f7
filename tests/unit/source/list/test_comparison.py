"""The changes in a page, against a model that compares one key at a time."""

from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.source.list.pages import Selection, compare, compare_sweep, compare_tail
from aioprefetch.source.values import Change, KnownFile, SourceFile, TailAndSweep
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Entry

keys = st.text("ab/é\U0001f600", min_size=1, max_size=3)
versions = st.sampled_from(["1", "2"])
listings = st.dictionaries(keys, versions, max_size=12)
knowledge = st.dictionaries(keys, st.tuples(versions, st.sampled_from([None, 5])), max_size=12)


def entries_of(listing: dict[str, str]) -> list[Entry]:
    """A page in the order of its keys."""
    return [Entry(path=key, size=1, etag=listing[key]) for key in sorted(listing)]


def known_of(known: dict[str, tuple[str, int | None]]) -> list[KnownFile]:
    """The known files, sorted by key, without directories."""
    return [
        KnownFile(SourceFile(key, 1, etag), 0, gone) for key, (etag, gone) in sorted(known.items()) if key[-1] != "/"
    ]


def expected(listing: dict[str, str], known: dict[str, tuple[str, int | None]]) -> dict[str, str]:
    """The change of each key."""
    found = {}
    for key in {*listing, *known}:
        if key.endswith("/"):
            continue
        etag = listing.get(key)
        was, gone = known.get(key, (None, None))
        if etag is None:
            kind = "gone" if gone is None else None
        elif was is None:
            kind = "new"
        elif was != etag:
            kind = "overwritten" if gone is None else "new"
        else:
            kind = None if gone is None else "returned"
        if kind is not None:
            found[key] = kind
    return found


@given(listings, knowledge, st.data())
def test_a_sweep_reports_the_change_of_each_key(
    listing: dict[str, str], known: dict[str, tuple[str, int | None]], data: st.DataObject
) -> None:
    """In order; a caller that takes some and continues from there gets the rest."""
    begin = TailAndSweep(frontier="c", sweep_key="", sweep_end="c")
    entries, files = entries_of(listing), known_of(known)
    whole = compare_sweep(begin, entries, files, "c", Selection())
    assert {change.file.key: change.kind for change, _ in whole.changes} == expected(listing, known)
    assert [change.file.key for change, _ in whole.changes] == sorted(expected(listing, known))
    assert whole.after == TailAndSweep(frontier="c", sweeps=1)
    taken = data.draw(st.integers(0, len(whole.changes)))
    cursor = whole.changes[taken - 1][1] if taken else begin
    assert isinstance(cursor, TailAndSweep)
    after = cursor.sweep_key or ""
    rest = compare_sweep(
        cursor,
        [entry for entry in entries if entry.path > after],
        [one for one in files if one.file.key > after],
        "c",
        Selection(),
    )
    assert rest.changes == whole.changes[taken:]


@given(listings, st.data())
def test_the_tail_reports_every_file_as_new(listing: dict[str, str], data: st.DataObject) -> None:
    entries = entries_of(listing)
    found = compare_tail(TailAndSweep(sweep_key="x", sweeps=3, sweep_end="y"), entries, Selection())
    assert [change.file.key for change, _ in found.changes] == [key for key in sorted(listing) if key[-1] != "/"]
    for change, cursor in found.changes:
        assert cursor == TailAndSweep(change.file.key, "x", 3, None, "y")
    assert found.after.frontier == (entries[-1].path if entries else "")


@checks("source:Q4")
def test_the_youngest_time_seen_is_that_of_the_store() -> None:
    """It never goes back, whatever comes after."""
    assert compare_tail(TailAndSweep(high_modified_ms=9), [], Selection()).after.high_modified_ms == 9
    known = [KnownFile(SourceFile("a", 1, "e", None, 5), 0)]
    cursor = TailAndSweep(frontier="b", sweep_key="", sweep_end="b", high_modified_ms=3)
    assert compare_sweep(cursor, [], known, "b", Selection()).after.high_modified_ms == 3


def test_files_without_etag_are_distinguished_by_size_and_time() -> None:
    known = [KnownFile(SourceFile("a", 1, None, None, 5), 0)]
    assert list(compare([SourceFile("a", 1, None, None, 5)], known)) == []
    assert list(compare([SourceFile("a", 2, None, None, 5)], known)) == [
        Change("overwritten", SourceFile("a", 2, None, None, 5))
    ]
