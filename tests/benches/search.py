"""How long a search for faults goes on, and where it begins.

`make test` gives each search five seconds from the same beginning; CI thirty, from one that the date names; and
`make test-sweeps` as long as all of it takes, up to an hour.
"""

import os
import time
import zlib
from collections.abc import Iterator

SECONDS = float(os.environ.get("AIOPREFETCH_SEARCH_SECONDS", "5"))
SEED = zlib.crc32(os.environ.get("AIOPREFETCH_SEARCH_SEED", "").encode())


def seeds(rounds_max: int) -> Iterator[int]:
    """Seeds of rounds, one at least, until the time is over or ``rounds_max`` were made."""
    end = time.monotonic() + SECONDS
    for number in range(rounds_max):
        if number and time.monotonic() > end:
            return
        yield SEED + number
