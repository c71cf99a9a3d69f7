"""The same faults beside every peer: ``python -m tests.libraries.faults`` prints what each makes of them.

Each pair of a fault and a library runs in a process of its own, against a server that answers by script: bytes are
compared with those of the object, and after a write, a copy and a move the bucket is looked at. ``--page`` fills
docs/reference/faults.md in. A process that says nothing for ``HANG_SECONDS`` hangs.
"""

import argparse
import asyncio
import hashlib
import io
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.oracle import content
from tests.repository.source_tree import ROOT
from tests.stores.faulty_bucket import FAULTS, Call, FaultyBucket

PAGE = ROOT / "docs" / "reference" / "faults.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
HANG_SECONDS = 40
DATA = content(900_000)
WRITTEN = content(300_000, version=7)
KEYS = ("testing", "testing")

Outcome = Literal["exact", "error", "wrong bytes", "lost", "hangs", "–"]
Job = Literal["read", "range", "write", "copy", "move"]


@dataclass(frozen=True)
class Case:
    """A fault, and the job that meets it. ``fault`` is that of a server of reads, or the name of one of a bucket."""

    says: str
    job: Job
    fault: Fault | str
    is_always: bool = False
    verbs: tuple[str, ...] = ()


CASES = (
    Case("one 503", "read", Fault(status=503, code="SlowDown")),
    Case("the connection is reset in the middle of the body", "read", Fault(reset_after_bytes=200_000)),
    Case("the body ends early with the connection", "read", Fault(close_after_bytes=200_000)),
    Case("the body ends early, and so says its length", "read", Fault(short_by_bytes=1000), is_always=True),
    Case("a body without a length ends early", "read", Fault(omit_content_length=True, close_after_bytes=200_000)),
    Case("a page of a proxy with status 200", "read", Fault(body=b"<html>Log in</html>" * 1000), is_always=True),
    Case(
        "a 206 that announces another range than it sends",
        "range",
        Fault(content_range_shift_bytes=100),
        is_always=True,
    ),
    Case("the whole object for a range", "range", Fault(ignore_range=True), is_always=True),
    Case("a 206 that does not say which range it is", "range", Fault(omit_content_range=True), is_always=True),
    Case("the object is overwritten between two ranges", "range", "overwritten"),
    Case("a 200 without a result for a write", "write", "hollow", is_always=True, verbs=("PutObject", "Complete")),
    Case(
        "a page of a proxy with status 200 for a write",
        "write",
        "page",
        is_always=True,
        verbs=("PutObject", "Complete"),
    ),
    Case("an error in a 200 for a copy", "copy", "error in a 200", is_always=True, verbs=("CopyObject",)),
    Case("a 200 without a result for the copy of a move", "move", "hollow", is_always=True, verbs=("CopyObject",)),
    Case("an error in a 200 for the copy of a move", "move", "error in a 200", is_always=True, verbs=("CopyObject",)),
)


# --- the libraries ----------------------------------------------------------------------------------------------------
# A job returns the bytes that it read. ``range`` reads the beginning and then the end, as a reader of Parquet does.

START, TAIL = (1000, 4096), (800_000, 4096)


def _ours(job: Job, url: str) -> bytes | None:
    import aioprefetch as ap

    options: dict[str, Any] = {"endpoint_url": url, "access_key_id": KEYS[0], "secret_access_key": KEYS[1]}
    options |= {"region": "us-east-1", "block_bytes": 64 << 10}
    with ap.sync.BlockingOperator(ap.Operator.from_uri("s3://bucket", **options)) as op:
        if job == "read":
            return op.read("k")
        if job == "range":
            with ap.sync.open("s3://bucket/k", "rb", **options) as file:
                return _ranges(file)
        if job == "write":
            op.write("new", WRITTEN)
        else:
            (op.copy if job == "copy" else op.move)("old", "new")
    return None


def _ranges(file: Any) -> bytes:
    found = b""
    for offset, size in (START, TAIL):
        file.seek(offset)
        found += file.read(size)
    return found


def _s3fs(job: Job, url: str) -> bytes | None:
    import s3fs

    fs = s3fs.S3FileSystem(key=KEYS[0], secret=KEYS[1], endpoint_url=url, client_kwargs={"region_name": "us-east-1"})
    if job == "read":
        return bytes(fs.cat_file("bucket/k"))
    if job == "range":
        with fs.open("bucket/k", block_size=64 << 10) as file:
            return _ranges(file)
    if job == "write":
        fs.pipe_file("bucket/new", WRITTEN)
    else:
        (fs.cp_file if job == "copy" else fs.mv)("bucket/old", "bucket/new")
    return None


def _boto3(job: Job, url: str) -> bytes | None:
    import boto3

    where = {"endpoint_url": url, "region_name": "us-east-1"}
    client = boto3.client("s3", aws_access_key_id=KEYS[0], aws_secret_access_key=KEYS[1], **where)
    one = {"Bucket": "bucket", "Key": "k"}
    if job == "read":
        return bytes(client.get_object(**one)["Body"].read())
    if job == "range":
        asked = [f"bytes={offset}-{offset + size - 1}" for offset, size in (START, TAIL)]
        return b"".join(client.get_object(**one, Range=text)["Body"].read() for text in asked)
    if job == "write":
        client.put_object(Bucket="bucket", Key="new", Body=WRITTEN)
        return None
    client.copy_object(Bucket="bucket", Key="new", CopySource="bucket/old")
    if job == "move":
        client.delete_object(Bucket="bucket", Key="old")
    return None


def _obstore(job: Job, url: str) -> bytes | None:
    import obstore
    from obstore.store import S3Store

    secret = {"access_key_id": KEYS[0], "secret_access_key": KEYS[1], "region": "us-east-1"}
    store = S3Store("bucket", endpoint=url, client_options={"allow_http": True}, **secret)  # type: ignore[arg-type]
    if job == "read":
        return bytes(obstore.get(store, "k").bytes())
    if job == "range":
        return b"".join(bytes(obstore.get_range(store, "k", start=at, length=size)) for at, size in (START, TAIL))
    if job == "write":
        obstore.put(store, "new", WRITTEN)
    else:
        (obstore.copy if job == "copy" else obstore.rename)(store, "old", "new")
    return None


def _smart_open(job: Job, url: str) -> bytes | None:
    import boto3
    import smart_open

    where = {"endpoint_url": url, "region_name": "us-east-1"}
    client = boto3.client("s3", aws_access_key_id=KEYS[0], aws_secret_access_key=KEYS[1], **where)
    params = {"client": client}
    if job in ("copy", "move"):
        raise NotImplementedError
    if job == "write":
        with smart_open.open("s3://bucket/new", "wb", transport_params={**params, "multipart_upload": False}) as out:
            out.write(WRITTEN)
        return None
    with smart_open.open("s3://bucket/k", "rb", transport_params=params) as file:
        return bytes(file.read()) if job == "read" else _ranges(file)


def _pyarrow(job: Job, url: str) -> bytes | None:
    from pyarrow import fs

    given = {"access_key": KEYS[0], "secret_key": KEYS[1], "region": "us-east-1", "allow_bucket_creation": False}
    store = fs.S3FileSystem(endpoint_override=url.removeprefix("http://"), scheme="http", **given)
    if job in ("read", "range"):
        with store.open_input_file("bucket/k") as file:
            return bytes(file.read()) if job == "read" else _ranges(file)
    if job == "write":
        with store.open_output_stream("bucket/new") as out:
            out.write(WRITTEN)
    else:
        (store.copy_file if job == "copy" else store.move)("bucket/old", "bucket/new")
    return None


LIBRARIES: Mapping[str, Callable[[Job, str], bytes | None]] = {
    "aioprefetch": _ours,
    "s3fs": _s3fs,
    "boto3": _boto3,
    "obstore": _obstore,
    "smart_open": _smart_open,
    "pyarrow": _pyarrow,
}


def _here(library: str, job: Job, url: str) -> None:
    """Do a job in this process; what came of it is the last line that is printed."""
    try:
        found = LIBRARIES[library](job, url)
    except NotImplementedError:
        said = {"outcome": "–"}
    except Exception as error:
        said = {"outcome": "error", "error": type(error).__name__}
    else:
        said = {"outcome": "done", "digest": "" if found is None else hashlib.sha256(found).hexdigest()}
    sys.stdout.write(f"\n{json.dumps(said)}\n")
    sys.stdout.flush()


# --- the cases --------------------------------------------------------------------------------------------------------


async def _done(library: str, job: Job, url: str) -> dict[str, str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.libraries.faults", "--here", library, job, url]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(HANG_SECONDS):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return {"outcome": "hangs"}
    lines = [line for line in out.decode().splitlines() if line.startswith('{"outcome"')]
    return dict(json.loads(lines[-1])) if lines else {"outcome": "error", "error": "the process died"}


async def outcome(case: Case, library: str) -> tuple[Outcome, bool]:
    """What a library makes of a fault, and whether the fault happened."""
    async with AsyncExitStack() as stack:
        if case.job in ("read", "range"):
            return await _read(case, library, stack)
        bucket = await stack.enter_async_context(FaultyBucket())
        bucket.put("old", WRITTEN)
        struck: list[int] = []

        def strikes(call: Call) -> bool:
            if call.verb in case.verbs:
                struck.append(call.number)
            return call.verb in case.verbs

        bucket.fault, bucket.strikes = FAULTS[str(case.fault)], strikes
        said = await _done(library, case.job, bucket.endpoint_url)
        if said["outcome"] != "done":
            kept = case.job == "write" or WRITTEN in bucket.objects.values()
            return (said["outcome"] if kept else "lost"), bool(struck)  # type: ignore[return-value]
        return ("exact" if bucket.objects.get("new") == WRITTEN else "lost"), bool(struck)


async def _read(case: Case, library: str, stack: AsyncExitStack) -> tuple[Outcome, bool]:
    data = {"read": DATA, "range": b"".join(DATA[at : at + size] for at, size in (START, TAIL))}[case.job]
    server = await stack.enter_async_context(FaultServer({"bucket/k": DATA}))
    if isinstance(case.fault, str):
        changes = iter([False, True])

        def overwrite(request: Any) -> bool:
            if request.method == "GET" and next(changes, False):
                server.objects["bucket/k"] = content(len(DATA), version=3)
            return False

        server.add(Rule(fault=Fault(), matches=overwrite, times=None))
    else:
        server.add(Rule(fault=case.fault, method="GET", times=None if case.is_always else 1))
    said = await _done(library, case.job, server.url)
    happened = bool(server.faults) or server.objects["bucket/k"] != DATA
    if said["outcome"] != "done":
        return said["outcome"], happened  # type: ignore[return-value]
    return ("exact" if said["digest"] == hashlib.sha256(data).hexdigest() else "wrong bytes"), happened


async def measured(cases: tuple[Case, ...] = CASES, libraries: tuple[str, ...] = tuple(LIBRARIES)) -> str:
    """The table. A fault that a library's requests did not meet is in brackets."""
    out = io.StringIO()
    out.write(f"| fault | job | {' | '.join(libraries)} |\n|{' --- |' * (2 + len(libraries))}\n")
    for case in cases:
        cells = []
        for library in libraries:
            found, happened = await outcome(case, library)
            said = f"**{found}**" if found in ("wrong bytes", "lost", "hangs") else found
            cells.append(said if happened or found == "–" else f"({said})")
        out.write(f"| {case.says} | {case.job} | {' | '.join(cells)} |\n")
    return out.getvalue()


def main() -> None:
    """Print the table, or fill it into its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", help=", ".join(LIBRARIES))
    parser.add_argument("--page", action="store_true", help="write the table into the documentation")
    parser.add_argument("--here", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        _here(*options.here)
        return
    table = asyncio.run(measured(libraries=tuple(options.libraries) or tuple(LIBRARIES)))
    if not options.page:
        sys.stdout.write(table)
        return
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{versions}.\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main()
