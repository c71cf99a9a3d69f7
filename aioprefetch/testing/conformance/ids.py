"""The lines of the conformance lists, the tests that check them, and the lines that do not apply.

`opendal:R9` is from the list of OpenDAL's behaviour tests, `s3a:P09` from that of Hadoop's contract tests for S3A
streams, `reliability:D06` a fault that block files must survive, `reliability:S35` a fault at the wire, `source:L5`
a line of the design of the file source. docs/reference/conformance.md explains the lists.
"""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_OPENDAL = {"R": 34, "S": 10, "L": 12, "W": 11, "D": 6, "C": 7, "P": 4, "E": 6}
_S3A = {"S": 20, "C": 10, "P": 14, "V": 24}
_RELIABILITY = {"D": 32, "S": 70}
_SOURCE = {"L": 12, "F": 10, "R": 2, "Q": 8}

OPENDAL_IDS = [f"opendal:{letter}{n}" for letter, last in _OPENDAL.items() for n in range(1, last + 1)]
S3A_IDS = [f"s3a:{letter}{n:02}" for letter, last in _S3A.items() for n in range(1, last + 1)]
RELIABILITY_IDS = [f"reliability:{letter}{n:02}" for letter, last in _RELIABILITY.items() for n in range(1, last + 1)]
SOURCE_IDS = [f"source:{letter}{n}" for letter, last in _SOURCE.items() for n in range(1, last + 1)]
ALL_IDS = frozenset(OPENDAL_IDS + S3A_IDS + RELIABILITY_IDS + SOURCE_IDS)

NOT_APPLICABLE: dict[str, str] = {
    "opendal:W7": "objects are written whole; no store of ours can append without rewriting",
    "opendal:C6": (
        "`op.copy` takes no condition: S3's CopyObject has none that every store honours. `ap.copy(overwrite=False)`"
        " replaces nothing"
    ),
    "opendal:C7": "there is no rename: `op.move` is a copy and a delete, and not atomic",
    "s3a:S20": "a seek beyond the end is allowed, as POSIX has it, whether or not the size is known; reads there "
    "return b''",
    "s3a:P05": "no read takes an offset into the destination buffer: slice a memoryview instead",
    "s3a:P07": "no read takes a length beside the destination buffer: the buffer's length is the length",
    "s3a:V18": "the caller hands in no allocator: buffers come from the byte budget and go back to it",
    "s3a:V20": "merged ranges are internal and no public call accepts them",
}

CHECKED: dict[str, set[str]] = {}


def checks(*ids: str) -> Callable[[F], F]:
    """Mark a test as the check of these lines. `ValueError` for an unknown line or one that does not apply."""
    unknown = [line_id for line_id in ids if line_id not in ALL_IDS]
    excused = [line_id for line_id in ids if line_id in NOT_APPLICABLE]
    if unknown or excused:
        raise ValueError(f"unknown ids {unknown}, ids that do not apply {excused}")

    def mark(test: F) -> F:
        for line_id in ids:
            CHECKED.setdefault(line_id, set()).add(f"{test.__module__}.{test.__qualname__}")
        return test

    return mark
