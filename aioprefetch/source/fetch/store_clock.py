"""What time a store thinks it is: its clock tells how old files are, and it need not agree with ours."""

from __future__ import annotations

import time

from aioprefetch.errors import Error
from aioprefetch.operator.operator import Operator

# Stores tell whole seconds, and answers take their time: less than this is no difference.
SKEW_MS_MIN = 5000


def now_ms() -> int:
    """This machine's time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


async def skew_ms(operator: Operator, written_by: Operator, path: str) -> int:
    """How far the store's clock is ahead of ours, told by an object there that was written a moment ago.

    0 if they agree, if the object lies in another store than ``operator`` reads, or if it cannot be looked at.
    """
    here, there = operator.info, written_by.info
    if (here.scheme, here.endpoint) != (there.scheme, there.endpoint):
        return 0
    try:
        found = await written_by.stat(path)
    except Error:
        return 0
    if found.last_modified is None:
        return 0
    skew = round(found.last_modified.timestamp() * 1000) - now_ms()
    return skew if abs(skew) >= SKEW_MS_MIN else 0
