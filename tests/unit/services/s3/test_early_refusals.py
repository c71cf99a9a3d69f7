"""A refusal that comes before the body has gone is the result: one request, and no line in the log."""

import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from aioprefetch import Operator
from aioprefetch.errors import AlreadyExists, ConditionNotMatch, Error, PermissionDenied, Unavailable
from aioprefetch.services.s3 import S3
from tests.profile import chosen
from tests.stores.certificates import Authority

BODY = bytes(32 << 20)
RUNS = chosen(quick=8, full=50)


class Refusing:
    """A server that reads the head of a request, refuses it and hangs up: the body that is not read resets it."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.answer = b""
        self.requests = 0
        self._context = context
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                with suppress(OSError):
                    peer = peer if self._context is None else self._context.wrap_socket(peer, server_side=True)
                with peer, suppress(OSError):
                    peer.recv(4096)
                    self.requests += 1
                    peer.sendall(self.answer)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Refusing]:
    refusing = Refusing()
    yield refusing
    refusing.close()


def refusal(status: str, code: str, more: str = "") -> bytes:
    body = f"<Error><Code>{code}</Code></Error>"
    return f"HTTP/1.1 {status}\r\n{more}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize("more", ["Connection: close\r\n", ""], ids=["close", "kept"])
@pytest.mark.parametrize(
    ("status", "code", "options", "kind"),
    [
        ("403 Forbidden", "AccessDenied", {}, PermissionDenied),
        ("412 Precondition Failed", "PreconditionFailed", {"if_not_exists": True}, AlreadyExists),
        ("412 Precondition Failed", "PreconditionFailed", {"if_match": "e"}, ConditionNotMatch),
    ],
)
async def test_an_early_refusal_is_the_result(
    server: Refusing,
    caplog: pytest.LogCaptureFixture,
    more: str,
    status: str,
    code: str,
    options: dict[str, bool],
    kind: type[Error],
) -> None:
    server.answer = refusal(status, code, more)
    keys = {"access_key_id": "id", "secret_access_key": "secret"}
    service = S3(bucket="bkt", endpoint_url=server.url, region="r", part_bytes=64 << 20, **keys)  # type: ignore[arg-type]
    async with Operator(service) as op:
        with caplog.at_level(logging.WARNING):
            for run in range(RUNS):
                with pytest.raises(kind):
                    await op.write("k", BODY, **options)  # type: ignore[arg-type]
                assert server.requests == run + 1
    assert caplog.records == []


async def test_over_tls_nothing_goes_on_a_broken_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Mostly it is the result too. Where the loop finds the break by itself, nothing can decrypt what has arrived."""
    authority = Authority(tmp_path)
    with closing(Refusing(authority.context("127.0.0.1"))) as server:
        server.answer = refusal("403 Forbidden", "AccessDenied", "Connection: close\r\n")
        keys: dict[str, Any] = {"access_key_id": "id", "secret_access_key": "secret", "ca_bundle": authority.bundle}
        service = S3(bucket="bkt", endpoint_url=server.url, region="r", part_bytes=64 << 20, **keys)
        async with Operator(service) as op:
            with caplog.at_level(logging.WARNING):
                for _ in range(RUNS):
                    with pytest.raises((PermissionDenied, Unavailable)):
                        await op.write("k", BODY)
    assert [record for record in caplog.records if "socket.send" in record.getMessage()] == []
