"""An S3 store at a distance: nginx on loopback, with a delay before the first byte and a bandwidth per connection.

It serves GET and HEAD of objects in one bucket, path style, any keys: ranges, strong ETags, If-Match (412) and the
XML of a missing key, all by nginx's own static files, sent by ``sendfile``. The delay is ``ngx.sleep`` of the Lua
module, before each response. The bandwidth is SO_MAX_PACING_RATE on the listening socket, which every accepted
connection inherits: the kernel spaces the packets, to within 1 % of the rate at one connection and at nine. (nginx's
own ``limit_rate`` never makes up for a late timer: 5 % too slow, and 15 to 25 % beside eight other connections.)

Of the responses to keys below ``late-1/``, 1 % begin after ten times the delay; any other percentage likewise. Over TLS
it shows a certificate of an authority of its own.

``python -m tests.benchmarks.simulator`` serves until Ctrl-C.
"""

import argparse
import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from xml.sax.saxutils import escape

from tests.benchmarks.access_log import LOG_FORMAT, AccessLog, Request
from tests.benchmarks.content import write_object
from tests.benchmarks.nginx import MODULES, Unavailable, configuration, install_nginx
from tests.stores.certificates import write_certificates

BUCKET = "bench"
# The socket module of Python 3.11 does not name it; the number is the same on x86 and ARM.
SO_MAX_PACING_RATE = 47
# nginx logs a request when its last byte is in the socket. A small buffer keeps that close to when it leaves.
SEND_BUFFER_BYTES = 128 << 10
# Keys of a page of a listing, as on S3.
LIST_KEYS = 1000
WAIT_SECONDS = 10.0
# The server is on this machine, whatever proxy the environment names.
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
POLL_SECONDS = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How far away the store is. ``None`` as bandwidth, in bytes per second and connection, is as fast as it goes."""

    first_byte_seconds: float = 0.030
    bandwidth: int | None = 90_000_000
    tls: bool = False

    def __str__(self) -> str:
        rate = f"{self.bandwidth / 1e6:g} MB/s per connection" if self.bandwidth else "no limit of bandwidth"
        return f"first byte after {self.first_byte_seconds * 1e3:g} ms, {rate}{', TLS' if self.tls else ''}"


AT_A_DISTANCE = Conditions()
LOOPBACK = Conditions(first_byte_seconds=0.0, bandwidth=None)
LOOPBACK_TLS = Conditions(first_byte_seconds=0.0, bandwidth=None, tls=True)


class Simulator:
    """The server and its bucket, for a ``with`` block. All of it is gone at the end."""

    def __init__(self, conditions: Conditions = AT_A_DISTANCE) -> None:
        self.conditions = conditions
        self._stack = contextlib.ExitStack()
        self._marks = itertools.count()
        self.authority = ""  # the path of the certificate to trust; empty without TLS

    def __enter__(self) -> Self:
        self._program = install_nginx()
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        # Objects are in memory where there is a file system in memory: the disk must not be what is measured.
        memory = Path("/dev/shm")
        data = self._directory(memory if memory.is_dir() else None)
        self._prefix = self._directory(None)
        self._complaints = self._prefix / "complaints.log"
        (self._prefix / "temp").mkdir()
        self._bucket = data / BUCKET
        self._bucket.mkdir()
        with contextlib.ExitStack() as listeners:
            plain = listeners.enter_context(self._listen())
            ours = [plain]
            if self.conditions.tls:
                ours.append(listeners.enter_context(self._listen()))
                self.authority = str(write_certificates(self._prefix))
            address, port = plain.getsockname()
            # What the harness itself asks for goes unencrypted.
            self._control_url = f"http://{address}:{port}"
            self.endpoint_url = (
                f"https://{address}:{ours[-1].getsockname()[1]}" if self.authority else self._control_url
            )
            (self._prefix / "nginx.conf").write_text(self._configuration(data, ours))
            with self._complaints.open("wb") as complaints:
                self._process = subprocess.Popen(
                    [self._program, "-p", str(self._prefix), "-c", "nginx.conf"],
                    # nginx takes over listening sockets whose numbers it finds here; so that the kernel chose the port.
                    env={**os.environ, "NGINX": "".join(f"{one.fileno()};" for one in ours)},
                    pass_fds=[one.fileno() for one in ours],
                    stdin=subprocess.DEVNULL,
                    stdout=complaints,
                    stderr=complaints,
                )
        self._stack.callback(self._stop)
        self._log = AccessLog(self._prefix / "requests.log")
        self._wait_until_idle()

    def put(self, key: str, size_bytes: int, write: Callable[[Path, int], None] = write_object) -> int:
        """Make an object by ``write``, and return its size."""
        path = self._bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, size_bytes)
        return path.stat().st_size

    def link(self, key: str, existing: str) -> None:
        """Give an object another key, which costs no memory."""
        (self._bucket / key).parent.mkdir(parents=True, exist_ok=True)
        os.link(self._bucket / existing, self._bucket / key)

    def list_objects(self, keys: Sequence[str]) -> None:
        """Let the bucket list these objects, whatever prefix it is asked for: as S3 does, a thousand at a time."""
        pages = self._bucket.parent / "list"
        pages.mkdir()
        ordered = sorted(keys)
        for number, begin in enumerate(range(0, len(ordered), LIST_KEYS), start=1):
            found = ordered[begin : begin + LIST_KEYS]
            following = str(number + 1) if begin + LIST_KEYS < len(ordered) else None
            entries = [(key, (self._bucket / key).stat()) for key in found]
            (pages / str(number)).write_text(list_page(entries, following))

    def take_requests(self) -> list[Request]:
        """What was asked since the last call, when the last connection has gone: end the client first."""
        self._wait_until_idle()
        # nginx keeps a part of its log in memory, and writes it when it is asked to open the file again. The log is
        # complete when this request, the last one, is in it.
        mark = f"/mark/{next(self._marks)}"
        with DIRECTLY.open(f"{self._control_url}{mark}", timeout=WAIT_SECONDS):
            self._process.send_signal(signal.SIGUSR1)
        found: list[Request] = []
        deadline = time.monotonic() + WAIT_SECONDS
        while not found or found[-1].uri != mark:
            if time.monotonic() > deadline:
                raise Unavailable(f"the log of nginx is not complete after {WAIT_SECONDS:g} s")
            time.sleep(POLL_SECONDS)
            found += self._log.take()
        return found[:-1]

    @property
    def worker_pid(self) -> int:
        """The process that serves."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0])

    def _directory(self, parent: Path | None) -> Path:
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="aioprefetch-bench-", dir=parent)))

    def _listen(self) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.conditions.bandwidth:
            listener.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, self.conditions.bandwidth)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        return listener

    def _configuration(self, data: Path, listeners: list[socket.socket]) -> str:
        address, port = listeners[0].getsockname()
        return configuration(
            modules=str(MODULES),
            user="user root;" if os.geteuid() == 0 else "",
            log_format=LOG_FORMAT,
            address=address,
            port=port,
            tls_port=listeners[1].getsockname()[1] if len(listeners) > 1 else None,
            bucket=BUCKET,
            root=str(data),
            delay_seconds=self.conditions.first_byte_seconds,
            paced=self.conditions.bandwidth is not None,
        )

    def _wait_until_idle(self) -> None:
        """Wait until no connection but this one is open, so that every request is in the log.

        The port listens before nginx runs: the first response takes as long as nginx takes to start.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise Unavailable(f"nginx ended at once:\n{self._complaints.read_text()}")
            with (
                contextlib.suppress(OSError),
                DIRECTLY.open(f"{self._control_url}/active", timeout=WAIT_SECONDS) as response,
            ):
                if re.search(rb"Active connections: 1\b", response.read()):
                    return
        raise Unavailable(f"connections to nginx are still open after {WAIT_SECONDS:g} s")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def list_page(entries: Iterable[tuple[str, os.stat_result]], following: str | None) -> str:
    """A ListObjectsV2 answer of some files by key, and the token of the next page."""
    contents = "".join(_entry(key, status) for key, status in entries)
    more = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{'true' if following else 'false'}</IsTruncated>{more}{contents}</ListBucketResult>"
    )


def _entry(key: str, status: os.stat_result) -> str:
    modified = datetime.fromtimestamp(int(status.st_mtime), UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    etag = f"&quot;{int(status.st_mtime):x}-{status.st_size:x}&quot;"  # as nginx makes it
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified><ETag>{etag}</ETag>"
        f"<Size>{status.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def end_with_sigterm() -> None:
    """Let SIGTERM end this process like an exception, so that the server and its objects go away with it."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def main() -> None:
    """Serve one object until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first-byte-ms", type=float, default=30.0)
    parser.add_argument(
        "--bandwidth", type=int, default=90_000_000, help="bytes per second and connection; 0: no limit"
    )
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--tls", action="store_true", help="by a certificate of an authority of its own")
    options = parser.parse_args()
    conditions = Conditions(
        first_byte_seconds=options.first_byte_ms / 1e3, bandwidth=options.bandwidth or None, tls=options.tls
    )
    end_with_sigterm()
    with Simulator(conditions) as simulator:
        simulator.put("object", options.size_mib << 20)
        print(
            f"{simulator.endpoint_url}/{BUCKET}/object, {options.size_mib} MiB, {conditions}"
            f"{', to be trusted: ' if options.tls else ''}{simulator.authority}; Ctrl-C ends it",
            flush=True,
        )
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
