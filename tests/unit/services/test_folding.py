"""Pages of a listing against a naive reference: group first, page afterwards."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.services.keys import fold_page
from aioprefetch.values import Entry, ListRequest

names = st.text("ab/0.-ü", min_size=1, max_size=6)


def reference(keys: list[str], request: ListRequest) -> list[str]:
    """All paths of a listing, found the long way round."""
    found: dict[str, None] = {}
    for key in sorted(keys):
        if not key.startswith(request.path):
            continue
        rest = key[len(request.path) :]
        path = key
        if not request.recursive and "/" in rest:
            path = request.path + rest.split("/")[0] + "/"
        if path > (request.start_after or "") and not (path == request.path and path.endswith("/")):
            found[path] = None
    return list(found)


@given(
    st.sets(names, max_size=25),
    st.just("") | names,
    st.booleans(),
    st.none() | names,
    st.integers(1, 4),
)
def test_pages_together_are_the_listing(
    keys: set[str], prefix: str, recursive: bool, start_after: str | None, limit: int
) -> None:
    request = ListRequest(path=prefix, recursive=recursive, start_after=start_after, page_entries_max=limit)
    ordered = sorted(keys)
    found: list[Entry] = []
    while True:
        page = fold_page(ordered, request, lambda key: Entry(path=key, size=0))
        assert len(page.entries) <= limit
        found += page.entries
        if page.next_token is None:
            break
        assert len(page.entries) == limit
        request = replace(request, page_token=page.next_token)
    assert [entry.path for entry in found] == reference(ordered, replace(request, page_token=None))
    assert all(entry.is_directory == entry.path.endswith("/") for entry in found)
