# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[obspec]", "obspec", "obstore"]
# ///
"""obspec both ways: an operator as a store of obspec's, and stores of obstore's under an operator.

A function that asks for obspec's protocols takes our operator, with its merged ranges, layers and caches, as it takes
obstore's stores. ``gs://`` and ``az://`` come through obstore.
"""

from obspec import GetRanges, Put, exceptions
from obstore.store import MemoryStore

import aioprefetch as ap


def corners(store: GetRanges, path: str, size: int) -> list[bytes]:
    """The first and the last bytes of an object, out of any store of obspec's."""
    return [bytes(part) for part in store.get_ranges(path, starts=[0, size - 4], ends=[4, size])]


def save(store: Put, path: str, data: bytes) -> None:
    """Put an object where none is."""
    store.put(path, data, mode="create")


def main() -> None:
    """The same functions over obstore's store, and over ours."""
    data = bytes(range(256)) * 4096
    theirs = MemoryStore()
    with ap.obspec.store(ap.Operator(ap.services.ObspecStore(MemoryStore(), name="scratch"))) as ours:
        for name, store in (("obstore", theirs), ("aioprefetch", ours)):
            save(store, "dir/object", data)
            print(name, [part.hex() for part in corners(store, "dir/object", len(data))])
        try:
            save(ours, "dir/object", data)
        except exceptions.AlreadyExistsError as error:
            print(type(error).__name__, isinstance(error, ap.AlreadyExists))
        print("requests for the corners:", ours.operator.statistics["action_http_get_request"])
    print(ap.Operator.from_uri("gs://bucket/data", anonymous=True).info.url)


if __name__ == "__main__":
    main()
