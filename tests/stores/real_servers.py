"""Servers of S3 and of Azure's blobs that others wrote: how each is installed, started, and reached past the library.

They are installed below a folder, as far as they are not of Debian. What each of them does otherwise than S3 is in
`DIFFERENCES` of `tests/servers.py`, and in the table of docs/reference/conformance.md.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import quote

import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError

from aioprefetch.errors import NotFound

START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.1
BUCKET = "conformance"
# Azurite's account is the same on every machine, and so is its key.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CEPH_CONF = """[global]
fsid = {fsid}
mon initial members = a
mon host = [v2:127.0.0.1:{mon},v1:127.0.0.1:{mon_v1}]
public addr = 127.0.0.1
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd crush chooseleaf type = 0
osd pool default pg autoscale mode = off
mon max pg per osd = 2000
mon data avail crit = 1
admin socket =
log file = {home}/$name.log
pid file = {home}/$name.pid
keyring = {home}/keyring
osd objectstore = memstore
memstore device bytes = 4294967296
osd data = {home}/osd
mon data = {home}/mon
rgw frontends = beast endpoint=127.0.0.1:{port}
"""


def run(*command: str | Path, seconds: float = 600) -> str:
    """What a command prints. `RuntimeError` with its last lines where it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@dataclass
class RealServer:
    """A server that is installed below `home` and keeps its data below `data`."""

    name: str
    source: str
    packages: tuple[str, ...]
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    access_key_id: str = "conformance"
    secret_access_key: str = "conformance-secret"
    region = "us-east-1"
    endpoint_url = ""

    def install(self, home: Path) -> str:
        """Install it, as far as it is not there; its version."""
        if self.source == "apt":
            if not Path("/usr/bin/radosgw").exists():
                run("apt-get", "update", "-qq")
                options = ("install", "-y", "-qq", "--no-install-recommends")
                run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *options, *self.packages)
            found = re.search(r"\d+\.\d+\.\d+", run("radosgw", "--version"))
        elif self.source == "npm":
            folder = home / self.name
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "node_modules").exists():
                run("npm", "install", "--prefix", folder, "--no-fund", "--no-audit", "--silent", *self.packages)
            text = (folder / "node_modules" / self.name / "package.json").read_text("utf-8")
            found = re.search(r'(?<="version": ")[^"]+', text)
        else:
            folder, uv = home / self.name, Path(sys.executable).with_name("uv")
            if not (folder / "bin" / self.name).exists():
                run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder)
                run(uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python", *self.packages)
            shown = run(uv, "pip", "show", "--python", folder / "bin" / "python", self.packages[0])
            found = re.search(r"(?<=Version: )\S+", shown)
        assert found is not None, f"{self.name} tells no version"
        return found[0]

    @contextlib.contextmanager
    def running(self, home: Path, data: Path) -> Iterator[None]:
        """Listening at `endpoint_url` within the block, with a bucket."""
        port = free_port()
        self.endpoint_url = f"http://127.0.0.1:{port}"
        with contextlib.ExitStack() as stack:
            if self.source == "apt":
                stack.enter_context(_ceph(data, port, self))
            else:
                words = {"home": str(home / self.name), "data": str(data), "port": str(port)}
                command = [word.format(**words) for word in self.command]
                variables = {name: value.format(**words) for name, value in self.environment.items()}
                with (data / "log").open("wb") as log:
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | variables, cwd=data
                    )
                stack.callback(process.wait)
                stack.callback(process.terminate)
                _wait_for(port, data / "log")
            self.create_bucket()
            yield

    def options(self) -> tuple[str, dict[str, Any]]:
        """The URL of the bucket, and the options for it."""
        names = ("endpoint_url", "region", "access_key_id", "secret_access_key")
        return f"s3://{BUCKET}", {name: getattr(self, name) for name in names}

    def client(self) -> Any:
        """A client of botocore."""
        return botocore.session.get_session().create_client(
            "s3",
            region_name=self.region,
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret_access_key,
            config=Config(s3={"addressing_style": "path"}, response_checksum_validation="when_required"),
        )

    def create_bucket(self) -> None:
        """Make the bucket."""
        with contextlib.closing(self.client()) as client:
            client.create_bucket(Bucket=BUCKET)

    def beside(self, prefix: str) -> "BotocoreObjects":
        """Objects below a prefix, past the library."""
        return BotocoreObjects(self.client(), prefix)


@dataclass(frozen=True)
class BotocoreObjects:
    """Objects below a prefix, by botocore."""

    client: Any
    prefix: str

    async def write(self, path: str, data: bytes, /) -> None:
        """Store an object."""
        await asyncio.to_thread(self.client.put_object, Bucket=BUCKET, Key=self.prefix + path, Body=data)

    async def read(self, path: str, /) -> bytes:
        """The bytes of an object. `NotFound` where there is none."""
        return await asyncio.to_thread(self._read, path)

    def _read(self, path: str) -> bytes:
        try:
            with self.client.get_object(Bucket=BUCKET, Key=self.prefix + path)["Body"] as body:
                data: bytes = body.read()
                return data
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                raise
            raise NotFound("there is none", path=path) from None


class Azurite(RealServer):
    """Azure's blobs, reached by requests that are signed here."""

    def options(self) -> tuple[str, dict[str, Any]]:
        """The URL of the container, and the options for it."""
        account = {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY, "allow_http": True}
        return f"az://{BUCKET}", {"endpoint_url": f"{self.endpoint_url}/{AZURE_ACCOUNT}", **account}

    def create_bucket(self) -> None:
        """Make the container."""
        status, _ = self.request("PUT", f"/{BUCKET}", "restype=container")
        assert status == 201, status

    def request(self, method: str, path: str, query: str = "", body: bytes = b"", **more: str) -> tuple[int, bytes]:
        """Send a request that is signed by the account's key; the status and the body."""
        resource = f"/{AZURE_ACCOUNT}{quote(path, safe='/~')}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02", **more}
        lines = [method, "", "", str(len(body)) if body else "", *[""] * 8]
        lines += [f"{name}:{value}" for name, value in sorted(headers.items())]
        lines += [f"/{AZURE_ACCOUNT}{resource}", *filter(None, [query.replace("=", ":")])]
        digest = hmac.digest(base64.b64decode(AZURE_KEY), "\n".join(lines).encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
        with contextlib.closing(http.client.HTTPConnection(self.endpoint_url.removeprefix("http://"))) as connection:
            connection.request(method, f"{resource}?{query}".rstrip("?"), body, headers)
            response = connection.getresponse()
            return response.status, response.read()

    def beside(self, prefix: str) -> Any:
        """Objects below a prefix, past the library."""
        return AzureBlobs(self, prefix)


@dataclass(frozen=True)
class AzureBlobs:
    """Blobs below a prefix, by requests."""

    server: Azurite
    prefix: str

    async def write(self, path: str, data: bytes, /) -> None:
        """Store a blob."""
        kind = {"x-ms-blob-type": "BlockBlob"}
        place = f"/{BUCKET}/{self.prefix}{path}"
        status, said = await asyncio.to_thread(self.server.request, "PUT", place, "", data, **kind)
        assert status == 201, said

    async def read(self, path: str, /) -> bytes:
        """The bytes of a blob. `NotFound` where there is none."""
        status, data = await asyncio.to_thread(self.server.request, "GET", f"/{BUCKET}/{self.prefix}{path}")
        if status == 404:
            raise NotFound("there is none", path=path)
        assert status == 200, data
        return data


@contextlib.contextmanager
def _ceph(home: Path, port: int, server: RealServer) -> Iterator[None]:
    """A cluster of one monitor and one store in memory, and the gateway."""
    conf, keyring, fsid, osd = home / "ceph.conf", home / "keyring", str(uuid.uuid4()), str(uuid.uuid4())
    monitor, monitor_v1 = free_port(), free_port()
    for name in ("mon", "osd"):
        (home / name).mkdir()
    conf.write_text(CEPH_CONF.format(fsid=fsid, mon=monitor, mon_v1=monitor_v1, home=home, port=port), "utf-8")
    keyring.touch()
    for name, caps in (("mon.", "mon"), ("client.admin", "mon osd mgr"), ("osd.0", "mon osd")):
        allowed = [word for cap in caps.split() for word in ("--cap", cap, "allow *")]
        run("ceph-authtool", keyring, "--gen-key", "-n", name, *allowed)
    address = f"[v2:127.0.0.1:{monitor},v1:127.0.0.1:{monitor_v1}]"
    run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", address, home / "monmap")
    run("ceph-mon", "-c", conf, "--mkfs", "-i", "a", "--monmap", home / "monmap", "--keyring", keyring)
    with contextlib.ExitStack() as stack:

        def start(*command: str | Path) -> None:
            with (home / "log").open("ab") as log:
                process = subprocess.Popen([*command, "-f"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.send_signal, signal.SIGKILL)  # Nothing of it is needed again.

        start("ceph-mon", "-c", conf, "-i", "a")
        run("ceph", "-c", conf, "--connect-timeout", "30", "osd", "new", osd, "0")
        run("ceph-osd", "-c", conf, "-i", "0", "--mkfs", "--osd-uuid", osd)
        start("ceph-osd", "-c", conf, "-i", "0")
        start("radosgw", "-c", conf, "-n", "client.admin")
        _wait_for(port, home / "log")
        keys = ("--access-key", server.access_key_id, "--secret-key", server.secret_access_key)
        run("radosgw-admin", "-c", conf, "user", "create", "--uid", "conformance", "--display-name", "x", *keys)
        yield


def _wait_for(port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), contextlib.closing(socket.create_connection(("127.0.0.1", port))):
            return
        time.sleep(POLL_SECONDS)
    raise RuntimeError(f"nothing listens on {port} after {START_SECONDS_MAX:g} s:\n{log.read_text('utf-8')[-2000:]}")


NODE = "{home}/node_modules/.bin/"
REAL_SERVERS = {
    server.name: server
    for server in (
        RealServer("localbucket", "PyPI", ("localbucket",), ("{home}/bin/localbucket", "--port", "{port}", "{data}")),
        RealServer(
            "ministack",
            "PyPI",
            ("ministack",),
            ("{home}/bin/ministack",),
            {"GATEWAY_PORT": "{port}", "SERVICES": "s3"},
            access_key_id="test",
            secret_access_key="test",
        ),
        RealServer(
            "s3rver",
            "npm",
            ("s3rver",),
            (f"{NODE}s3rver", "-d", "{data}", "-a", "127.0.0.1", "-p", "{port}", "--no-vhost-buckets", "--silent"),
            access_key_id="S3RVER",
            secret_access_key="S3RVER",
        ),
        Azurite(
            "azurite",
            "npm",
            ("azurite@3.35.0",),  # Later ones need Node 22.
            (
                *(f"{NODE}azurite-blob", "--silent", "--disableTelemetry", "--skipApiVersionCheck"),
                *("--blobPort", "{port}", "-l", "{data}"),
            ),
        ),
        RealServer("radosgw", "apt", ("radosgw", "ceph-osd", "ceph-mon", "ceph-common")),
    )
}
