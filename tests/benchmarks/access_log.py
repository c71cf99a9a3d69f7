"""What the simulator saw: the count of requests and bytes that no client can colour."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

# One JSON object a line. $msec is the end of a request, to the millisecond, on the clock of time.time().
LOG_FORMAT = (
    '{"method": "$request_method", "uri": "$uri", "status": $status, "end": $msec, "seconds": $request_time, '
    '"range": "$http_range", "sent_bytes": $body_bytes_sent, "connection": $connection}'
)


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

    @property
    def is_cut(self) -> bool:
        """Whether less than the range that was asked for went out."""
        first, _, last = self.range.removeprefix("bytes=").partition("-")
        return bool(first and last) and self.status == 206 and self.sent_bytes < int(last) - int(first) + 1

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read a line of the log."""
        found = json.loads(line)
        return cls(
            method=found["method"],
            uri=found["uri"],
            status=found["status"],
            start=found["end"] - found["seconds"],
            end=found["end"],
            range=found["range"],
            sent_bytes=found["sent_bytes"],
            connection=found["connection"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Several requests, summed up.

    ``in_flight`` is the largest number of GETs at once, ``full_at`` the time when that number was first reached.
    """

    gets: int
    others: int
    sent_bytes: int
    in_flight: int
    full_at: float
    request_bytes: float
    connections: int

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Self:
        """Sum up. ``request_bytes`` is the median size of a GET."""
        gets = [one for one in requests if one.method == "GET"]
        in_flight, full_at = most_at_once(gets)
        return cls(
            gets=len(gets),
            others=len(requests) - len(gets),
            sent_bytes=sum(one.sent_bytes for one in requests),
            in_flight=in_flight,
            full_at=full_at,
            request_bytes=statistics.median(one.sent_bytes for one in gets) if gets else 0.0,
            connections=len({one.connection for one in requests}),
        )


def most_at_once(requests: Sequence[Request]) -> tuple[int, float]:
    """How many requests overlapped at most, and when they first did."""
    # At equal times an end (-1) sorts before a start: one request after another is one at a time.
    changes = sorted([(one.start, 1) for one in requests] + [(one.end, -1) for one in requests])
    now = most = 0
    first = 0.0
    for time, change in changes:
        now += change
        if now > most:
            most, first = now, time
    return most, first


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
