# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch"]
# ///
"""A library of your own under faults: what it makes of a server that does wrong, and what it leaves behind.

The library is ``urllib`` here, as it is often used. Put yours in its place: the methods of ``Adapter`` are all that the
suite calls. Each fault meets a process of its own, so a library that hangs or dies stops nothing.
"""

import asyncio
import urllib.request
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from aioprefetch.testing.library_suite import LIBRARY_FAULTS, StoreAddress, outcome_table, run_library_suite


class Adapter:
    """The library. A call that it does not have raises ``NotImplementedError``."""

    def __init__(self, store: StoreAddress) -> None:
        self.root = f"{store.endpoint_url}/{store.bucket}"
        self.copy = self.move = self._lacks

    def _sent(self, method: str, path: str, data: bytes | None = None, **headers: str) -> bytes:
        request = urllib.request.Request(f"{self.root}{path}", data, headers, method=method)
        with urllib.request.urlopen(request) as response:
            body: bytes = response.read()
            return body

    def read(self, key: str) -> bytes:
        """The bytes of an object."""
        return self._sent("GET", f"/{key}")

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Ranges, each an offset and a size."""
        asked = [f"bytes={offset}-{offset + size - 1}" for offset, size in ranges]
        return [self._sent("GET", f"/{key}", Range=text) for text in asked]

    def write(self, key: str, data: bytes) -> None:
        """Write an object."""
        self._sent("PUT", f"/{key}", data)

    def list(self, prefix: str) -> list[str]:
        """The keys that begin with a prefix."""
        page = ET.fromstring(self._sent("GET", f"?list-type=2&prefix={prefix}"))
        return [key.text or "" for key in page.iter("Key")]

    def delete(self, key: str) -> None:
        """Delete an object."""
        self._sent("DELETE", f"/{key}")

    def _lacks(self, source: str, target: str) -> None:
        raise NotImplementedError


async def main() -> None:
    """Four of the faults; without ``faults`` all of them are tried."""
    chosen = [fault for fault in LIBRARY_FAULTS if fault.says in CHOSEN]
    outcomes = await run_library_suite(Adapter, faults=chosen, hang_seconds=20)
    print(outcome_table({"urllib": outcomes}), end="")


CHOSEN = (
    "one 503",
    "the body ends early with the connection",
    "the whole object for a range",
    "a 200 without a result for a write",
)

if __name__ == "__main__":  # The process of each fault loads this file too.
    asyncio.run(main())
