"""The same faults for any library that reads and writes S3: what it makes of them, and what it leaves behind.

    outcomes = await run_library_suite(MyLibrary)        # a class of yours with the methods of ``LibraryAdapter``
    print(outcome_table({"my library": outcomes}))

Each fault meets a process of its own, which does its job four times against a ``FaultServer``: twice without the
fault, where the job must succeed, and twice with it. Bytes and names are compared with the store's, and the
store is looked at. What a process holds after the second fault, and neither after the first nor without one, is a
leak. ``LIBRARY_FAULTS`` are data, and others can be given.
"""

import asyncio
import contextlib
import gc
import hashlib
import importlib.util
import inspect
import json
import os
import re
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from aioprefetch.testing.fault_server import FaultServer
from aioprefetch.testing.faults import Fault, ReceivedRequest, Rule
from aioprefetch.testing.oracle import content

Job = Literal["read", "read_ranges", "write", "write_parts", "list", "copy", "move", "delete"]
Found = Literal["exact", "error", "wrong bytes", "lost", "hangs", "–"]

BUCKET = "bucket"
RANGES = ((1000, 4096), (800_000, 4096))
RUNS, RUNS_WITHOUT_FAULT = 4, 2
SETTLE_SECONDS = 3.0
START_SECONDS = 60.0  # of a process that imports a library
WRITES, COPIES, DELETIONS = ("PutObject", "Complete"), ("CopyObject",), ("DeleteObject", "Delete")
PAGE = b"<html><body>Please log in</body></html>"
ERROR = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"


@dataclass(frozen=True, kw_only=True)
class StoreAddress:
    """The address of the store of a run, in S3's words."""

    endpoint_url: str
    bucket: str = BUCKET
    region: str = FaultServer.region
    access_key_id: str = FaultServer.access_key_id
    secret_access_key: str = FaultServer.secret_access_key


class LibraryAdapter(Protocol):
    """A library with the settings that it has by itself. Its calls block, and raise what the library raises.

    A verb that the library lacks raises ``NotImplementedError``.
    """

    def read(self, key: str, /) -> bytes:
        """The bytes of an object."""
        ...

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]], /) -> list[bytes]:
        """Ranges, each an offset and a size, one after the other: where the library opens files, from one of them."""
        ...

    def write(self, key: str, data: bytes, /) -> object:
        """Write an object; one of 24 MiB in parts, if the library has such."""
        ...

    def list(self, prefix: str, /) -> Iterable[str]:
        """The keys that begin with a prefix, which ends with a slash."""
        ...

    def copy(self, source: str, target: str, /) -> object:
        """Copy an object."""
        ...

    def move(self, source: str, target: str, /) -> object:
        """Move an object."""
        ...

    def delete(self, key: str, /) -> object:
        """Delete an object."""
        ...


@dataclass(frozen=True, kw_only=True)
class LibraryFault:
    """A fault that requests with these ``verbs`` (in S3's words) meet, the first or all of them, and the ``job``.

    With ``overwrites`` another client overwrites the object when the second of them arrives.
    """

    says: str
    job: Job
    fault: Fault = field(default_factory=Fault)
    verbs: tuple[str, ...] = ("GetObject",)
    is_lasting: bool = False
    overwrites: bool = False


def _lasting(says: str, job: Job, verbs: tuple[str, ...], **fault: Any) -> LibraryFault:
    return LibraryFault(says=says, job=job, verbs=verbs, fault=Fault(**fault), is_lasting=True)


def _once(says: str, job: Job, verbs: tuple[str, ...], **fault: Any) -> LibraryFault:
    return LibraryFault(says=says, job=job, verbs=verbs, fault=Fault(**fault))


_GET, _LIST = ("GetObject",), ("List",)
LIBRARY_FAULTS = (
    _once("one 503", "read", _GET, status=503, code="SlowDown"),
    _once("the connection is reset in the middle of the body", "read", _GET, reset_after_bytes=200_000),
    _once("the body ends early with the connection", "read", _GET, close_after_bytes=200_000),
    _lasting("the body ends early, and so says its length", "read", _GET, short_by_bytes=1000),
    _once("a body without a length ends early", "read", _GET, omit_content_length=True, close_after_bytes=200_000),
    _once("no response", "read", _GET, hang_before_head=True),
    _once("the body stops, and the connection stays", "read", _GET, hang_after_bytes=200_000),
    _lasting("a page of a proxy with status 200", "read", _GET, body=b"<html>Log in</html>" * 1000),
    _lasting("a 206 that announces another range than it sends", "read_ranges", _GET, content_range_shift_bytes=100),
    _lasting("the whole object for a range", "read_ranges", _GET, ignore_range=True),
    _lasting("a 206 that does not say which range it is", "read_ranges", _GET, omit_content_range=True),
    LibraryFault(says="the object is overwritten between two ranges", job="read_ranges", overwrites=True),
    _lasting("a page of a proxy with status 200 for a listing", "list", _LIST, body=PAGE),
    _lasting("a listing that is cut", "list", _LIST, short_by_bytes=300),
    _once("the response to a write is lost", "write", WRITES, drop=True),
    _lasting("a 200 without a result for a write", "write", WRITES, status=200),
    _lasting("a page of a proxy with status 200 for a write", "write", WRITES, status=200, body=PAGE),
    _once("one 500 for a part of an upload", "write_parts", ("PutPart",), status=500),
    _lasting("each part of an upload is refused", "write_parts", ("PutPart",), status=403, code="AccessDenied"),
    _lasting("an error in a 200 for the end of an upload", "write_parts", ("Complete",), status=200, body=ERROR),
    _lasting("an error in a 200 for a copy", "copy", COPIES, status=200, body=ERROR),
    _lasting("a 200 without a result for the copy of a move", "move", COPIES, status=200),
    _lasting("an error in a 200 for the copy of a move", "move", COPIES, status=200, body=ERROR),
    _lasting("a page of a proxy with status 200 for a deletion", "delete", DELETIONS, status=200, body=PAGE),
)


@dataclass(frozen=True, kw_only=True)
class LibraryOutcome:
    """The end of a fault with a library.

    ``found`` is ``exact`` (the fault was mended, or did no harm), ``error``, ``wrong bytes`` (or names of a listing),
    ``lost`` (a success, but the store is not as it says; or a move without a copy), ``hangs``, or ``–`` for a call that
    it does not have. ``error`` is the name of what was raised. ``happened`` says whether the fault was met. ``leaks``
    counts what each fault leaves: ``sockets``, ``threads``, ``tasks``, ``files`` (temporary ones) and ``uploads``.
    """

    fault: LibraryFault
    found: Found
    error: str = ""
    happened: bool = True
    leaks: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_bad(self) -> bool:
        """Whether the caller is not safe: wrong bytes, a loss, or no end."""
        return self.found in ("wrong bytes", "lost", "hangs")

    def __str__(self) -> str:
        said = f"**{self.found}**" if self.is_bad else self.found
        if self.leaks:
            left = [f"{number} {name[: -1 if number == 1 else None]}" for name, number in self.leaks.items()]
            said += f", leaves {', '.join(left)}"
        return said if self.happened or self.found == "–" else f"({said})"


async def run_library_suite(
    make: Callable[[StoreAddress], LibraryAdapter],
    *,
    faults: Sequence[LibraryFault] = LIBRARY_FAULTS,
    hang_seconds: float = 90.0,
    at_once: int = 2,
) -> list[LibraryOutcome]:
    """The outcomes of some faults, in their order; a job that takes longer than ``hang_seconds`` hangs.

    ``make`` is a class or function at the top of a file, which is loaded in each process: a script that runs this has
    ``if __name__ == "__main__"``. ``at_once`` processes run at a time.

    Raises:
        RuntimeError: a job failed without a fault, or its process died, so that nothing is known of the library.
    """
    turns = asyncio.Semaphore(at_once)

    async def one(fault: LibraryFault) -> LibraryOutcome:
        async with turns:
            return await _outcome(make, fault, hang_seconds)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(fault)) for fault in faults]
    return [task.result() for task in tasks]


def outcome_table(outcomes: Mapping[str, Sequence[LibraryOutcome]]) -> str:
    """Two tables in Markdown of the outcomes by library: each fault, and how many there are of each kind.

    In brackets is what no request of the library has met.
    """
    columns = list(outcomes.values())
    lines = [f"| fault | job | {' | '.join(outcomes)} |", f"|{' --- |' * (2 + len(outcomes))}"]
    rows = zip(*columns, strict=True)
    lines += [f"| {row[0].fault.says} | {row[0].fault.job} | {' | '.join(map(str, row))} |" for row in rows]
    kinds = ("exact", "error", "wrong bytes", "lost", "hangs")
    lines += ["", f"| library | {' | '.join(kinds)} | leaks |", f"|{' --- |' * (2 + len(kinds))}"]
    for name, column in outcomes.items():
        counts = [sum(outcome.found == kind for outcome in column) for kind in kinds]
        lines.append(f"| {name} | {' | '.join(map(str, [*counts, sum(bool(outcome.leaks) for outcome in column)]))} |")
    return "\n".join(lines) + "\n"


# --- the process of a library -----------------------------------------------------------------------------------------


def _do(library: LibraryAdapter, job: Job, number: int) -> str:
    """Do a job below the directory of a run; the digest of the bytes and names."""
    pieces: Iterable[bytes] = ()
    at = f"run{number}"
    if job == "read":
        pieces = [library.read(f"{at}/k")]
    elif job == "read_ranges":
        pieces = library.read_ranges(f"{at}/k", RANGES)
    elif job == "list":
        pieces = [key.encode() for key in sorted(library.list(f"{at}/"))]
    elif job in ("write", "write_parts"):
        library.write(f"{at}/new", _data(job, number))
    elif job == "delete":
        library.delete(f"{at}/k")
    else:
        (library.copy if job == "copy" else library.move)(f"{at}/k", f"{at}/new")
    return _digest(pieces)


def _data(job: Job, number: int) -> bytes:
    """The object of a run. Memory that was used before must not pass for it."""
    return content({"write": 300_000, "write_parts": 24 << 20}.get(job, 900_000), version=3 + number)


def _digest(pieces: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\n".join(pieces)).hexdigest()


def _left() -> dict[str, int]:
    """The number of things of each kind that this process holds."""
    gc.collect()
    sockets = 0
    for number in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            sockets += stat.S_ISSOCK(os.fstat(int(number)).st_mode)
    native = Path("/proc/self/task")
    return {
        "sockets": sockets,
        "threads": len(os.listdir(native)) if native.exists() else threading.active_count(),
        "tasks": sum(isinstance(task, asyncio.Task) and not task.done() for task in gc.get_objects()),
        "files": sum(len(names) for _, _, names in os.walk(tempfile.gettempdir())),
    }


def _settled(before: Mapping[str, int]) -> dict[str, int]:
    """The same when it holds no more than before, or after some seconds."""
    end, left = time.monotonic() + SETTLE_SECONDS, _left()
    while any(left[name] > number for name, number in before.items()) and time.monotonic() < end:
        time.sleep(0.02)
        left = _left()
    return left


def _run_here(path: str, name: str, job: Job, address: StoreAddress) -> None:
    """Do a job four times in this process; a line of JSON says what came of each."""
    spec = importlib.util.spec_from_file_location("library_under_faults", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018 - of any file that has a path
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    library, left = getattr(module, name)(address), dict[str, int]()
    for number in range(RUNS):
        said: dict[str, Any] = {"outcome": "done"}
        try:
            said["digest"] = _do(library, job, number)
        except NotImplementedError:
            said["outcome"] = "–"
        except Exception as error:
            said |= {"outcome": "error", "error": type(error).__name__, "text": str(error)[:500]}
        left = _settled(left) if number else _left()
        sys.stdout.write(f"\n{json.dumps({**said, 'left': left})}\n")
        sys.stdout.flush()


# --- the server of a library ------------------------------------------------------------------------------------------


async def _outcome(make: Callable[..., Any], fault: LibraryFault, hang_seconds: float) -> LibraryOutcome:
    objects = {f"run{number}/{name}": _data("read", number) for number in range(RUNS) for name in ("k", "a", "b/c")}
    async with FaultServer(objects, bucket=BUCKET) as server:
        server.add(*(_rule(fault, server, number) for number in range(RUNS_WITHOUT_FAULT, RUNS)))
        said = await _said(make, fault.job, StoreAddress(endpoint_url=server.url), hang_seconds)
        for number, run in enumerate(said):
            run["found"] = _found(fault, server, number, run)
            run.setdefault("left", {})["uploads"] = sum(key.startswith(f"run{number}/") for key in server.uploads)
        happened = bool(server.faults) or (fault.overwrites and server.objects["run2/k"] != objects["run2/k"])
    for run in said[:RUNS_WITHOUT_FAULT]:
        if run["found"] not in ("exact", "–"):
            why = run.get("text") or run.get("error", "")
            raise RuntimeError(f"{make.__qualname__}: {fault.job} without a fault is {run['found']}: {why}")
    met = said[RUNS_WITHOUT_FAULT:]
    worst = next((run["found"] for run in met if run["found"] not in ("exact", "error")), met[0]["found"])
    leaks = _leaks([run["left"] for run in said]) if len(said) == RUNS and worst != "hangs" else {}
    return LibraryOutcome(fault=fault, found=worst, error=met[0].get("error", ""), happened=happened, leaks=leaks)


def _rule(fault: LibraryFault, server: FaultServer, number: int) -> Rule:
    """The fault of a run, recognised by the directory in its requests."""
    run, seen = re.compile(rf"\brun{number}\b"), 0

    def matches(request: ReceivedRequest) -> bool:
        nonlocal seen
        if request.call.verb not in fault.verbs or not run.search(f"{request.target} {request.body[:1000]!r}"):
            return False
        seen += 1
        if fault.overwrites and seen == 2:
            server.objects[f"run{number}/k"] = content(900_000)
        return not fault.overwrites

    return Rule(fault=fault.fault, matches=matches, times=None if fault.is_lasting or fault.overwrites else 1)


async def _said(make: Callable[..., Any], job: Job, address: StoreAddress, hang_seconds: float) -> list[dict[str, Any]]:
    """The lines of a process about its runs, until one hangs."""
    arguments = [inspect.getsourcefile(make) or "", make.__qualname__, job, json.dumps(asdict(address))]
    said: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "ignore", "-m", __name__, *arguments),
            env={**os.environ, "TMPDIR": folder, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        try:
            while len(said) < RUNS:
                async with asyncio.timeout(hang_seconds + (SETTLE_SECONDS if said else START_SECONDS)):
                    line = await process.stdout.readline()
                if line.startswith(b'{"outcome"'):
                    said.append(json.loads(line))
                elif not line:
                    raise RuntimeError(f"the process of {make.__qualname__} ended in run {len(said)} of {job}")
        except TimeoutError:
            said.append({"outcome": "hangs"})
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
    return said


def _found(fault: LibraryFault, server: FaultServer, number: int, said: Mapping[str, Any]) -> Found:
    """The end of a run, by the line of its process and by what is in the store."""
    at, objects, data = f"run{number}", server.objects, _data(fault.job, number)
    if said["outcome"] != "done":
        kept = fault.job != "move" or data in (objects.get(f"{at}/k"), objects.get(f"{at}/new"))
        outcome: Found = said["outcome"]
        return outcome if kept else "lost"
    if fault.job == "delete":
        return "lost" if f"{at}/k" in objects else "exact"
    if fault.job in ("write", "write_parts", "copy", "move"):
        return "exact" if objects.get(f"{at}/new") == data else "lost"
    pieces: Sequence[bytes] = [data]
    if fault.job == "list":
        pieces = [f"{at}/{name}".encode() for name in ("a", "b/c", "k")]
    elif fault.job == "read_ranges":
        pieces = [data[offset : offset + size] for offset, size in RANGES]
    return "exact" if said["digest"] == _digest(pieces) else "wrong bytes"


def _leaks(left: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The numbers that grow with each fault, and do not grow without one. Uploads are counted by run."""
    grown: dict[str, int] = {}
    for name in left[0]:
        counts = [numbers[name] for numbers in left]
        if name == "uploads":
            grown[name] = min(counts[2:])
        else:
            grown[name] = min(counts[2] - counts[1], counts[3] - counts[2]) - max(counts[1] - counts[0], 0)
    return {name: number for name, number in grown.items() if number > 0}


if __name__ == "__main__":
    _path, _name, _job, _address = sys.argv[1:]
    _run_here(_path, _name, _job, StoreAddress(**json.loads(_address)))  # type: ignore[arg-type]
