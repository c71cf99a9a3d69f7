"""A refusal that comes before the body has gone is the result: one request, and no line in the log."""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from aioprefetch import Operator
from aioprefetch.errors import AlreadyExists, ConditionNotMatch, Error, PermissionDenied
from aioprefetch.services.s3 import S3
from tests.profile import chosen

BODY = bytes(32 << 20)
RUNS = chosen(quick=8, full=50)


class Refusing:
    """A server that reads the head of a request, refuses it and hangs up: the body that is not read resets it."""

    def __init__(self) -> None:
        self.answer = b""
        self.requests = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
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
