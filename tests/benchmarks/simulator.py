"""An S3 store at a distance: nginx on loopback, with a delay before the first byte and a bandwidth per connection.

It serves GET and HEAD of objects in one bucket, path style, any keys: ranges, strong ETags, If-Match (412) and the
XML of a missing key, all by nginx's own static files, sent by ``sendfile``. The delay is ``ngx.sleep`` of the Lua
module, before each answer. The bandwidth is one of two:

* ``kernel`` (the default): SO_MAX_PACING_RATE on the listening socket, which every accepted connection inherits. The
  kernel spaces the packets, to within 1 % of the rate at one connection and at nine.
* ``nginx``: ``limit_rate``. nginx sleeps in whole milliseconds between pieces of ``sendfile_max_chunk`` bytes and
  never makes up for a late timer, so that a connection is about 5 % too slow, and 15 to 25 % beside eight others.

``python -m tests.benchmarks.simulator`` serves until Ctrl-C. How right it is: the job ``simulator`` of the benchmarks.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from tests.benchmarks.access_log import LOG_FORMAT, AccessLog, Request
from tests.benchmarks.content import write_object

Pacing = Literal["kernel", "nginx"]

BUCKET = "bench"
PACKAGES = ("nginx-light", "libnginx-mod-http-lua", "lua-resty-core")
MODULES = Path("/usr/lib/nginx/modules")
# The socket module of Python 3.11 does not name it; the number is the same on x86 and ARM.
SO_MAX_PACING_RATE = 47
# nginx logs a request when its last byte is in the socket. A small buffer keeps that close to when it leaves.
SEND_BUFFER_BYTES = 128 << 10
# With limit_rate: a piece for every five milliseconds. Smaller ones are late more often, larger ones are bursts.
PIECES_PER_SECOND = 200
WAIT_SECONDS = 10.0

CONFIGURATION = """
load_module {modules}/ndk_http_module.so;
load_module {modules}/ngx_http_lua_module.so;
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr warn;
{user}
events {{ worker_connections 4096; }}
http {{
    lua_package_path "/usr/share/lua/5.1/?.lua;;";
    log_format requests escape=json '{log_format}';
    client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; uwsgi_temp_path temp; scgi_temp_path temp;
    sendfile on;
    tcp_nodelay on;
    etag on;
    max_ranges 1;
    keepalive_timeout 300s;
    keepalive_requests 1000000;
    default_type application/octet-stream;
    server {{
        listen {address}:{port};
        access_log off;
        error_page 404 @missing;
        location /{bucket}/ {{
            root {root};
            access_log requests.log requests;
            access_by_lua_block {{ {delay} }}
            {limit}
        }}
        location = /active {{ stub_status; }}
        location @missing {{
            default_type application/xml;
            return 404 '<?xml version="1.0" encoding="UTF-8"?><Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>';
        }}
    }}
}}
"""  # noqa: E501 - the line of XML cannot be broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How far away the store is. ``None`` as bandwidth, in bytes per second and connection, is as fast as it goes."""

    first_byte_seconds: float = 0.030
    bandwidth: int | None = 90_000_000

    def request_seconds(self, size_bytes: float) -> float:
        """How long a GET of ``size_bytes`` takes at best."""
        return self.first_byte_seconds + (size_bytes / self.bandwidth if self.bandwidth else 0.0)

    def __str__(self) -> str:
        rate = f"{self.bandwidth / 1e6:g} MB/s per connection" if self.bandwidth else "no limit of bandwidth"
        return f"first byte after {self.first_byte_seconds * 1e3:g} ms, {rate}"


AT_A_DISTANCE = Conditions()
LOOPBACK = Conditions(first_byte_seconds=0.0, bandwidth=None)


class Unavailable(Exception):
    """There is no server; the text says why."""


def install_nginx() -> None:
    """Make sure that nginx and its Lua module are there, by apt-get where we are root.

    Raises:
        Unavailable: they are missing and cannot be installed; the text says how to.
    """
    if shutil.which("nginx") and (MODULES / "ngx_http_lua_module.so").exists():
        return
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Unavailable(
            f"the simulator needs nginx with its Lua module; on Debian or Ubuntu: sudo {' '.join(command)}"
        )
    subprocess.run(["apt-get", "update", "-qq"], check=True, capture_output=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, check=True, capture_output=True, env=environment)


class Simulator:
    """The server and its bucket, for a ``with`` block. All of it is gone at the end."""

    def __init__(self, conditions: Conditions = AT_A_DISTANCE, *, pacing: Pacing = "kernel") -> None:
        self.conditions = conditions
        self._pacing = pacing
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        install_nginx()
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
        with self._listen() as listener:
            address, port = listener.getsockname()
            self.endpoint_url = f"http://{address}:{port}"
            (self._prefix / "nginx.conf").write_text(self._configuration(data, address, port))
            with self._complaints.open("wb") as complaints:
                self._process = subprocess.Popen(
                    ["nginx", "-p", str(self._prefix), "-c", "nginx.conf"],
                    # nginx takes over listening sockets whose numbers it finds here; so that the kernel chose the port.
                    env={**os.environ, "NGINX": f"{listener.fileno()};"},
                    pass_fds=[listener.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=complaints,
                    stderr=complaints,
                )
        self._stack.callback(self._stop)
        self._log = AccessLog(self._prefix / "requests.log")
        self._wait_until_idle()

    def put(self, key: str, size_bytes: int) -> None:
        """Make an object."""
        path = self._bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        write_object(path, size_bytes)

    def link(self, key: str, existing: str) -> None:
        """Give an object another key, which costs no memory."""
        os.link(self._bucket / existing, self._bucket / key)

    def take_requests(self) -> list[Request]:
        """What was asked since the last call, when the last connection has gone: end the client first."""
        self._wait_until_idle()
        return self._log.take()

    def cpu_seconds(self) -> float:
        """The CPU time of the server so far."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        ticks = 0
        for process in children:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _directory(self, parent: Path | None) -> Path:
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="aioprefetch-bench-", dir=parent)))

    def _listen(self) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.conditions.bandwidth and self._pacing == "kernel":
            listener.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, self.conditions.bandwidth)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        return listener

    def _configuration(self, data: Path, address: str, port: int) -> str:
        seconds, bandwidth = self.conditions.first_byte_seconds, self.conditions.bandwidth
        limit = ""
        if bandwidth and self._pacing == "nginx":
            limit = f"limit_rate {bandwidth}; sendfile_max_chunk {bandwidth // PIECES_PER_SECOND};"
        return CONFIGURATION.format(
            modules=MODULES,
            user="user root;" if os.geteuid() == 0 else "",
            log_format=LOG_FORMAT,
            address=address,
            port=port,
            bucket=BUCKET,
            root=data,
            delay=f"ngx.sleep({seconds})" if seconds else "",
            limit=limit,
        )

    def _wait_until_idle(self) -> None:
        """Wait until no connection but this one is open, so that every request is in the log.

        The port listens before nginx runs: the first answer takes as long as nginx takes to start.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise Unavailable(f"nginx ended at once:\n{self._complaints.read_text()}")
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self.endpoint_url}/active", timeout=WAIT_SECONDS) as answer,
            ):
                if re.search(rb"Active connections: 1\b", answer.read()):
                    return
        raise Unavailable(f"connections to nginx are still open after {WAIT_SECONDS:g} s")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


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
    parser.add_argument("--pacing", choices=["kernel", "nginx"], default="kernel")
    parser.add_argument("--size-mib", type=int, default=256)
    options = parser.parse_args()
    conditions = Conditions(first_byte_seconds=options.first_byte_ms / 1e3, bandwidth=options.bandwidth or None)
    end_with_sigterm()
    with Simulator(conditions, pacing=options.pacing) as simulator:
        simulator.put("object", options.size_mib << 20)
        print(
            f"{simulator.endpoint_url}/{BUCKET}/object, {options.size_mib} MiB, {conditions}; Ctrl-C ends it",
            flush=True,
        )
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
