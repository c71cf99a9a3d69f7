"""Fuzzing of what parses the bytes of strangers, by atheris: coverage leads it from input to input.

``python -m tests.fuzz`` runs each target for ``--seconds``, ``python -m tests.fuzz thrift`` one, ``--input FILE`` one
input again. A target ends in a result, or in an error of ours; it also compares with a second implementation where
there is one. Inputs that were of interest are kept in ``build/fuzz``.
"""

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

from aioprefetch.errors import Error
from tests.repository.source_tree import ROOT

Target = Callable[[bytes], None]
TARGETS: dict[str, tuple[Target, tuple[bytes, ...]]] = {}
CORPUS = ROOT / "build" / "fuzz"
INPUT_BYTES_MAX = 4096


def target(*seeds: bytes) -> Callable[[Target], Target]:
    """Enter a target with inputs to begin from."""

    def enter(check: Target) -> Target:
        TARGETS[check.__name__] = (check, seeds)
        return check

    return enter


@target(b'HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/9\r\nETag: "a"\r\n\r\n')
def heads(data: bytes) -> None:
    """A head is what a reader of RFC 9112 by regular expressions sees in it, or it is refused."""
    from aioprefetch.transport.responses import parse_head
    from tests.unit.transport.model import Refused, read_head

    data = (data + b"\r\n\r\n").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"  # As the connection cuts it.
    try:
        head = parse_head(data)
    except Error:
        return
    try:
        model = read_head(data)
    except Refused as refused:
        raise AssertionError(f"accepted, but {refused}") from None
    assert (head.status, head.length) == (model.status, model.length)


@target(b"5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n", b"0\r\n\r\n")
def chunked_bodies(data: bytes) -> None:
    """However a body is split, the same bytes come of it, or an error."""
    from aioprefetch.transport.responses import ChunkedDecoder

    found = []
    for step in (len(data) or 1, 1, 7):
        decoder, body = ChunkedDecoder(), b""
        with contextlib.suppress(Error):
            for start in range(0, len(data), step):
                body += b"".join(decoder.feed(memoryview(data)[start : start + step]))
        found.append(body)
    assert all(found[1].startswith(body) for body in found), found


_PAGE = (
    b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>p/a</Key><LastModified>'
    b"2024-01-01T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag><Size>5</Size></Contents></ListBucketResult>"
)


@target(_PAGE, b"<Error><Code>SlowDown</Code><Message>m</Message></Error>")
def xml(data: bytes) -> None:
    """A page of a listing, the result of a write, and an error."""
    from aioprefetch.services.s3.responses import parse_error, parse_list_page, parse_result

    parse_error(data)
    for parse in (lambda: parse_list_page(data, "p/", "p/"), lambda: parse_result(data)):
        with contextlib.suppress(Error):
            parse()


@target(b"\x15\x02\x19\x1c\x15\x0c\x18\x01a\x00\x00", b"\x1b\x01\x88\x01a\x01b\x00")
def thrift(data: bytes) -> None:
    """A struct of a footer is read, skipped and written alike."""
    from aioprefetch.parquet.thrift import STRUCT, MalformedThrift, read_struct, skip_value, write_struct

    try:
        tree, end = read_struct(data)
    except MalformedThrift:
        return
    assert skip_value(data, 0, STRUCT) == end
    assert repr(read_struct(write_struct(tree))[0]) == repr(tree)  # A NaN is unequal to itself.


@target(b"\x08\x01\x12\x04\x08\x02\x10\x03", b"\x0a\x06\x08\x01\x10\x80\x80\x01")
def protobuf(data: bytes) -> None:
    """The metadata of a column and the manifest of a table of Lance."""
    from aioprefetch.lance.footer import parse_column
    from aioprefetch.lance.manifest import Directory, parse_manifest

    with contextlib.suppress(Error):
        parse_column(data, version=(2, 1), file_size=1 << 20)
    with contextlib.suppress(Error):
        parse_manifest(len(data).to_bytes(4, "little") + data + bytes(16), Directory("t/", "t/"), "p")


def _sealed(body: bytes) -> bytes:
    return b'{"crc32":"%08x","body":%s}\n' % (crc32(body), body)


@target(b'{"v":1,"state":"id","format":"csv"}', b'{"v":2,"seq":3,"cursor":{"kind":"diff"},"items":[]}')
def state(data: bytes) -> None:
    """Snapshot and description of a source's state, with a checksum that fits."""
    from aioprefetch.source.state.snapshot import Snapshot
    from aioprefetch.source.state.store import StateMeta
    from aioprefetch.source.stored_json import unseal

    with contextlib.suppress(Error):
        Snapshot.from_bytes(_sealed(data), path="p")
    with contextlib.suppress(Error):
        StateMeta.from_json(unseal(_sealed(data), path="p")[0], path="p")


@target(b'{"v":1,"state":"id","seq":3,"files":4,"bytes":5}')
def offsets(data: bytes) -> None:
    """An offset of a checkpoint is read as it stands, or refused."""
    from aioprefetch.source.values import Offset

    try:
        tree: Any = json.loads(data)
    except (ValueError, RecursionError):
        return
    with contextlib.suppress(Error):
        assert Offset.from_json(tree).to_json() == {**Offset.from_json(tree).to_json(), **tree}


@target(b"s3://bucket/key\0endpoint_url\0http://h", b"memory://a\0block_bytes\08MiB", b"http://h/a?b#c\0concurrency\0x")
def option_texts(data: bytes) -> None:
    """A URI with an option as text makes an operator, or an error that says why."""
    from aioprefetch import Operator

    uri, name, value = [*data.decode("utf-8", "replace").split("\0"), "", ""][:3]
    with contextlib.suppress(Error):
        Operator.from_uri(uri, **({name: value} if name else {}))  # type: ignore[arg-type]


def _fuzz(name: str, arguments: list[str]) -> None:
    """Run one target in this process, which it ends."""
    import atheris

    check, seeds = TARGETS[name]
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (folder / f"seed-{number}").write_bytes(seed)
    with atheris.instrument_imports(include=["aioprefetch"], enable_loader_override=False), contextlib.suppress(Error):
        check(seeds[0])
    atheris.Setup([sys.argv[0], *arguments], check)
    atheris.Fuzz()


def main() -> int:
    """Fuzz all targets that are named; the number of those that failed."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together (default 60)")
    parser.add_argument("--input", type=Path, help="run a target on one input")
    parser.add_argument("--here", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.targets) - TARGETS.keys():
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    names = options.targets or list(TARGETS)
    if options.input is not None:
        TARGETS[names[0]][0](options.input.read_bytes())
        return 0
    if options.here is not None:
        _fuzz(names[0], options.here)
    return sum(_run(name, max(1, options.seconds // len(names))) for name in names)


def _run(name: str, seconds: int) -> bool:
    """Fuzz one target in a process of its own; whether it failed."""
    crash = CORPUS / f"{name}.failed"
    limits = [f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", "-timeout=10", "-rss_limit_mb=2048"]
    command = [sys.executable, "-m", "tests.fuzz", name, "--here", *limits, f"-exact_artifact_path={crash}"]
    done = subprocess.run([*command, str(CORPUS / name)], cwd=ROOT, capture_output=True, text=True, check=False)
    runs = [line for line in done.stderr.splitlines() if line.startswith(("Done", "#"))]
    print(f"{name}: {'failed' if done.returncode else 'ok'}; {runs[-1] if runs else ''}")
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:], f"\nagain: python -m tests.fuzz {name} --input {crash}")
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
