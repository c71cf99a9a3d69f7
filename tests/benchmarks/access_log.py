"""What the simulator saw: the count of requests and bytes that no client can colour."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

# One JSON object a line. $msec is the end of a request, to the millisecond, on the clock of time.time().
LOG_FORMAT = (
    '{"method": "$request_method", "uri": "$uri", "status": $status, "end": $msec, "seconds": $request_time, '
    '"sent_bytes": $body_bytes_sent}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as the server saw it: epoch seconds of its first and last byte, and the body bytes that went out.

    A client that hangs up early is counted with what had left the server, at most 256 KiB more than it received.
    """

    method: str
    uri: str
    status: int
    start: float
    end: float
    sent_bytes: int

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read a line of the log."""
        row = json.loads(line)
        return cls(start=row["end"] - row.pop("seconds"), **row)


def summed(requests: Sequence[Request]) -> dict[str, float]:
    """The figures of some requests; ``in_flight`` is the largest number of GETs at once."""
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
    }


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
