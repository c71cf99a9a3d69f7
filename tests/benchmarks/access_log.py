"""What the simulator saw: the count of requests and bytes that no client can colour."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

# One JSON object a line. $msec is the end of a request, to the millisecond, on the clock of time.time().
LOG_FORMAT = (
    '{"method": "$request_method", "uri": "$uri", "status": $status, "end": $msec, "seconds": $request_time, '
    '"range": "$http_range", "sent_bytes": $body_bytes_sent, "connection": $connection}'
)
BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as the server saw it: epoch seconds of its first and last byte, and the body bytes that went out.

    A client that hangs up early is counted with what had left the server, at most 256 KiB more than it received.
    ``connection`` is the number of the connection that it came by.
    """

    method: str
    uri: str
    status: int
    start: float
    end: float
    range: str
    sent_bytes: int
    connection: int = 0

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read a line of the log."""
        row = json.loads(line)
        return cls(start=row["end"] - row.pop("seconds"), **row)

    def is_cut(self, size_bytes: int) -> bool:
        """Whether less than the range of the object that was asked for went out."""
        first, _, last = self.range.removeprefix("bytes=").partition("-")
        is_range = bool(first and last) and self.status == 206
        return is_range and self.sent_bytes < min(int(last) + 1, size_bytes) - int(first)

    def first_byte(self, size_bytes: int) -> int:
        """The offset of the first byte that a GET asked for, without a range 0."""
        first, _, last = self.range.removeprefix("bytes=").partition("-")
        if first:
            return int(first)
        return max(0, size_bytes - int(last)) if last else 0


def summed(requests: Sequence[Request], size_bytes: int) -> dict[str, float]:
    """The figures of some requests of objects of this size; ``in_flight`` is the largest number of GETs at once."""
    gets = [one for one in requests if one.method == "GET"]
    # At equal times an end (-1) sorts before a start: one request after another is one at a time.
    now = most = 0
    for _, change in sorted([(one.start, 1) for one in gets] + [(one.end, -1) for one in gets]):
        now += change
        most = max(most, now)
    return {
        "gets": len(gets),
        "others": len(requests) - len(gets),
        "sent_bytes": sum(one.sent_bytes for one in requests),
        "in_flight": most,
        "connections": len({one.connection for one in requests}),
        "cut": sum(one.is_cut(size_bytes) for one in requests),
        "runs": len(requests) - len(gets) + runs(gets, size_bytes),
    }


def runs(gets: Sequence[Request], size_bytes: int) -> int:
    """The GETs, where a run of adjacent ones above a block counts once: it was cut to be read side by side."""
    spans = sorted((one.first_byte(size_bytes), one.sent_bytes) for one in gets)
    count, position, run_bytes, run_requests = 0, -1, 0, 0
    for start, length in [*spans, (-1, 0)]:
        if start != position:
            count += 1 if run_bytes > BLOCK_BYTES else run_requests
            run_bytes = run_requests = 0
        position, run_bytes, run_requests = start + length, run_bytes + length, run_requests + 1
    return count


class AccessLog:
    """The log file of a running server, read in pieces: each call gives the whole lines that came since the last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def take(self) -> list[Request]:
        """The requests that ended since the last call, in the order of their ends."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            lines, newline, _ = file.read().rpartition(b"\n")
        self._position += len(lines) + len(newline)
        return [Request.parse(line) for line in lines.decode().splitlines()]
