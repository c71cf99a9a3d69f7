"""Answers as servers send them, in every framing, and ways to damage them. Everything is drawn from one generator."""

import random
from dataclasses import dataclass

FRAMINGS = ("length", "length", "length", "chunked", "close", "head", "204", "304")
NOISE = b"\r\n\0 \t:;,0123456789abcfxHTP/\xff\x7f"
SNIPPETS = (
    b"\r\n\r\n",
    b"\r\n",
    b"\n",
    b"0\r\n\r\n",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"transfer-encoding: gzip, chunked\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b" folded\r\n",
    b"Connection: close\r\n",
)


@dataclass(frozen=True)
class Sent:
    """One response: its bytes, where its body begins, and what its body is."""

    stream: bytes
    body_at: int
    body: bytes
    framing: str

    @property
    def is_head(self) -> bool:
        return self.framing == "head"

    @property
    def ends_with_connection(self) -> bool:
        return self.framing == "close"


def draw_response(rng: random.Random) -> Sent:
    """A good response."""
    framing = rng.choice(FRAMINGS)
    status = int(framing) if framing.isdigit() else rng.choice((200, 206, 206, 404, 412, 503))
    body = b"" if framing.isdigit() else rng.randbytes(rng.choice((0, 1, 2, 17, 100, 700, 700, 5000, 20_000)))
    fields = [(b"ETag", b'"%x"' % rng.getrandbits(64)), (b"Date", b"Sat, 01 Jan 2000 00:00:00 GMT")]
    fields += [(b"X-%d" % number, rng.choice((b"", b"a", b"a, b", b"\xe9t\xe9"))) for number in range(rng.randrange(4))]
    if rng.random() < 0.02:
        fields.append((b"X-Long", b"v" * rng.choice((5_000, 17_000, 60_000))))
    version = b"HTTP/1.1"
    if framing in ("length", "head"):
        fields.append((b"Content-Length", b"%d" % len(body)))
    elif framing == "chunked":
        fields.append((b"Transfer-Encoding", rng.choice((b"chunked", b"Chunked"))))
    if framing == "304" and rng.random() < 0.5:
        fields.append((b"Content-Length", b"1234"))
    if framing != "chunked" and rng.random() < 0.1:
        version = b"HTTP/1.0"
    if framing == "close" or rng.random() < 0.2:
        fields.append((b"Connection", rng.choice((b"close", b"keep-alive", b"Keep-Alive, x"))))
    rng.shuffle(fields)
    interim = b"".join(
        rng.choice((b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"))
        for _ in range(rng.choice((0, 0, 0, 0, 1, 3)))
    )
    head = interim + version + b" %d %b\r\n" % (status, rng.choice((b"", b"OK", b"Partial Content")))
    head += b"".join(_line(rng, name, value) for name, value in fields) + b"\r\n"
    if framing == "head":
        return Sent(head, len(head), b"", framing)
    sent = _chunks(rng, body) if framing == "chunked" else body
    return Sent(head + sent, len(head), body, framing)


def _line(rng: random.Random, name: bytes, value: bytes) -> bytes:
    cased = rng.choice((name, name.lower(), name.upper()))
    return cased + b":" + rng.choice((b"", b" ", b"\t ")) + value + rng.choice((b"", b"", b" ")) + b"\r\n"


def _chunks(rng: random.Random, body: bytes) -> bytes:
    sent, position = bytearray(), 0
    while position < len(body):
        piece = body[position : position + rng.choice((1, 10, 300, 4096, 20_000))]
        position += len(piece)
        size = rng.choice((b"%x", b"%X", b"000%x")) % len(piece)
        sent += size + rng.choice((b"", b"", b";name=value", b" ;x")) + b"\r\n" + piece + b"\r\n"
        if len(sent) > len(body) + 4000:  # Enough small ones.
            piece = body[position:]
            position = len(body)
            sent += (b"%x\r\n" % len(piece) + piece + b"\r\n") if piece else b""
    return bytes(sent) + b"0\r\n" + rng.choice((b"", b"", b"X-Sum: 1\r\n")) + b"\r\n"


def mutate(rng: random.Random, stream: bytes, head_bytes: int) -> bytes:
    """The stream, damaged one to three times, mostly in its head."""
    data = bytearray(stream)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        end = head_bytes if rng.random() < 0.7 else len(data)
        at = rng.randrange(max(1, min(end, len(data))))
        kind = rng.randrange(6)
        if kind == 0 and data:
            data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at:at] = bytes(rng.choices(NOISE, k=rng.choice((1, 1, 2, 5))))
        elif kind == 2:
            del data[at : at + rng.choice((1, 1, 2, 5, 40))]
        elif kind == 3:
            data[at:at] = data[at : at + rng.choice((1, 4, 20, 60, 200))]
        elif kind == 4:
            del data[at:]
        else:
            line = data.find(b"\n", at) + 1
            data[line:line] = rng.choice(SNIPPETS)
    return bytes(data)


def split(rng: random.Random, count: int) -> list[int]:
    """Sizes of pieces in which ``count`` bytes arrive."""
    style = rng.randrange(4)
    if style == 0:
        return []
    if style == 1:
        return [rng.randrange(1, 40) for _ in range(min(count, 60))]
    if style == 2:
        return [rng.randrange(1, count + 1)] if count else []
    return [rng.choice((1, 100, 1448, 16 << 10)) for _ in range(12)]
