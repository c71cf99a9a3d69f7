"""The jobs ``simulator`` and ``simulator-speed``: is the store as far away as it says, and is it fast enough?

The client is a bare socket per connection, each in a thread, so that nothing but the server takes time.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from tests.benchmarks.access_log import Request
from tests.benchmarks.content import MIB, check
from tests.benchmarks.job import (
    CPU,
    GETS,
    IN_FLIGHT,
    RATE,
    SERVER_CPU,
    Column,
    Contestant,
    Job,
    Numbers,
    Sample,
    Target,
)
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.simulator import AT_A_DISTANCE, LOOPBACK, Conditions


class Connection:
    """A keep-alive connection that reads ranges into one buffer."""

    def __init__(self, target: Target, buffer_bytes: int) -> None:
        address = urlsplit(target.endpoint_url)
        assert address.hostname is not None
        assert address.port is not None
        self._target = target
        self._socket = socket.create_connection((address.hostname, address.port))
        self._buffer = memoryview(bytearray(buffer_bytes))

    def get(self, start: int, size_bytes: int) -> float:
        """Read a range; the seconds from the request to its last byte."""
        target = self._target
        began = time.perf_counter()
        self._socket.sendall(
            f"GET /{target.bucket}/{target.key} HTTP/1.1\r\nHost: x\r\n"
            f"Range: bytes={start}-{start + size_bytes - 1}\r\n\r\n".encode()
        )
        received = self._socket.recv_into(self._buffer, 4096)
        head, _, body = bytes(self._buffer[:received]).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 206"), head
        self._buffer[: len(body)] = body
        received = len(body)
        while received < size_bytes:
            received += self._socket.recv_into(self._buffer[received:size_bytes])
        seconds = time.perf_counter() - began
        # Comparing every byte would keep the interpreter's lock from the other connections.
        check(self._buffer[:size_bytes], start, every_byte=False)
        return seconds

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def gets(connections: int, size_bytes: int, times: int) -> Contestant:
    """A number of connections, each with ``times`` GETs, one after another."""

    def work(target: Target, seconds: list[float]) -> None:
        connection = Connection(target, max(size_bytes, 4096))
        start = 0
        for _ in range(times):
            seconds.append(connection.get(start, size_bytes))
            start = (start + size_bytes) % (target.size_bytes - size_bytes + 1)
        connection.close()

    def run(target: Target) -> Sample:
        seconds: list[float] = []
        threads = [threading.Thread(target=work, args=(target, seconds)) for _ in range(connections)]
        meter = Meter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        usage = meter.stop()
        assert len(seconds) == connections * times, "a connection failed"
        rate = connections * times * size_bytes / usage["wall_seconds"]
        return {**usage, "request_seconds": statistics.median(seconds), "bytes_per_second": rate}

    async def contestant(target: Target) -> Sample:
        return await asyncio.to_thread(run, target)

    return contestant


def against_nominal(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """How long a request should take, and by how much it took longer."""
    nominal = conditions.request_seconds(statistics.median(one.sent_bytes for one in requests))
    return {"nominal_seconds": nominal, "off_percent": 100 * (sample["request_seconds"] / nominal - 1)}


SIMULATOR = Job(
    name="simulator",
    title="requests of a bare socket against delay + size / bandwidth",
    conditions=AT_A_DISTANCE,
    size_bytes=128 * MIB,
    quick_size_bytes=128 * MIB,
    contestants={
        "1 connection, 1 byte": gets(1, 1, 20),
        "1 connection, 1 MiB": gets(1, MIB, 20),
        "1 connection, 8 MiB": gets(1, 8 * MIB, 8),
        "1 connection, 64 MiB": gets(1, 64 * MIB, 2),
        "9 connections, 8 MiB": gets(9, 8 * MIB, 8),
        "16 connections, 8 MiB": gets(16, 8 * MIB, 8),
    },
    quick_contestants=("1 connection, 1 byte", "1 connection, 8 MiB", "9 connections, 8 MiB"),
    columns=(
        Column(name="nominal_seconds", heading="nominal ms", unit=1e-3, digits=1),
        Column(name="request_seconds", heading="measured ms", unit=1e-3, digits=1),
        Column(name="off_percent", heading="off %", digits=1),
        RATE,
        IN_FLIGHT,
        GETS,
        SERVER_CPU,
    ),
    derive=against_nominal,
)

SIMULATOR_SPEED = Job(
    name="simulator-speed",
    title="what nginx sends at most, to a bare socket",
    conditions=LOOPBACK,
    size_bytes=512 * MIB,
    quick_size_bytes=128 * MIB,
    contestants={
        "1 connection, 8 MiB": gets(1, 8 * MIB, 128),
        "8 connections, 8 MiB": gets(8, 8 * MIB, 32),
    },
    columns=(
        RATE,
        GETS,
        CPU,
        SERVER_CPU,
    ),
)
