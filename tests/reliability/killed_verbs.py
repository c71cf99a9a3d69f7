"""Run as a program: verbs in processes that are killed before any system call. Its test is test_killed_writes.py.

    python -m tests.reliability.killed_verbs SECONDS SEED KILLS_MAX

Each process makes one call of a verb, on local files or in a bucket that another process serves, and is killed
meanwhile. Then no value is lost and no name has a part of one; and the next run does what the killed one was to do.
Prints how many were killed.
"""

import asyncio
import importlib
import itertools
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from aioprefetch import Operator
from aioprefetch.errors import Error, Unexpected
from aioprefetch.local_files.files import is_partial
from tests.model.verbs.doors import by_operator
from tests.model.verbs.places import FilesPlace
from tests.model.verbs.tree import Meaning, Tree, check, check_refusal
from tests.reliability.written_tree import OBJECTS, STEPS, TRANSFERS, TREE
from tests.stores.faulty_bucket import FaultyBucket, operator_at

# This process starts no thread and runs no loop: its children are copies of it in which everything is imported.
FORKS = multiprocessing.get_context("fork")
# System calls that change something, or show another process what was changed.
CHANGING = {
    *("link", "mkdir", "open", "remove", "rename", "replace", "rmdir", "symlink", "unlink"),
    *("close", "copy_file_range", "fchmod", "fsync", "ftruncate", "pwrite", "pwritev", "sendfile", "utime", "write"),
    *("recv", "recv_into", "send", "sendmsg"),
}
IMPORTED = {"aiobotocore", "aiohttp", "aioprefetch", "anyio", "botocore", *sys.stdlib_module_names}
SECONDS_MAX = 60.0
Run = Callable[[], Coroutine[Any, Any, None]]
KILLED = Unexpected("killed")


# --- the bucket -------------------------------------------------------------------------------------------------------


async def _serve(commands: Connection) -> None:
    loop = asyncio.get_running_loop()
    async with FaultyBucket() as bucket:
        commands.send(bucket.endpoint_url)
        while True:
            readable = asyncio.Event()
            loop.add_reader(commands.fileno(), readable.set)
            await readable.wait()
            loop.remove_reader(commands.fileno())
            tree = commands.recv()
            await bucket.wait_until_idle()
            if tree is None:
                commands.send(bucket.objects)
                continue
            bucket.objects.clear()
            for name, data in tree.items():
                bucket.put(name, data)
            commands.send(True)


class ServedBucket:
    """A bucket in a process of its own, which lives when its clients are killed."""

    def __init__(self) -> None:
        self._commands, theirs = FORKS.Pipe()
        self._process = FORKS.Process(target=lambda: asyncio.run(_serve(theirs)), daemon=True)
        self._process.start()
        self.endpoint_url: str = self._asked()

    def _asked(self) -> Any:
        assert self._commands.poll(SECONDS_MAX), "the bucket does not respond"
        return self._commands.recv()

    def plant(self, tree: Tree) -> None:
        """Put these objects there in place of all others."""
        self._commands.send(tree)
        self._asked()

    def tree(self) -> Tree:
        """The objects, when the requests of killed clients are done."""
        self._commands.send(None)
        found: Tree = self._asked()
        return found

    def operator(self) -> Operator:
        """An operator of it."""
        return operator_at(self.endpoint_url)


# --- the processes ----------------------------------------------------------------------------------------------------


def _child(run: Run, results: Connection, kill_at: int) -> None:
    calls, error = 0, None

    def count(frame: object, event: str, what: object) -> None:
        """Count system calls of all threads, before they are made."""
        nonlocal calls
        if event == "c_call" and getattr(what, "__name__", None) in CHANGING:
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        asyncio.run(run())
    except Error as raised:
        error = raised
    sys.setprofile(None)
    results.send((None if error is None else (type(error), str(error)), calls, sorted(sys.modules)))


def in_child(run: Run, kill_at: int = 0) -> tuple[Error | None, int] | None:
    """Make a call in a process, which is killed before a number of its system calls; ``None`` if it was.

    Returns the error that it has raised, and how many calls it was. What it has imported this process imports too.
    """
    ours, theirs = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_child, args=(run, theirs, kill_at))
    process.start()
    theirs.close()  # So that its end is seen here.
    assert ours.poll(SECONDS_MAX), "it hangs"
    try:
        error, calls, modules = ours.recv()
    except EOFError:
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the process has failed"
        return None
    finally:
        process.join()
        ours.close()
    for name in set(modules) - sys.modules.keys():
        if name.partition(".")[0] in IMPORTED:
            importlib.import_module(name)
    return None if error is None else error[0](error[1]), calls


def at_its_end(run: Run) -> tuple[Error | None, int]:
    """Make a call in a process that is not killed."""
    ended = in_child(run)
    assert ended is not None, "the process has failed"
    return ended


# --- the calls --------------------------------------------------------------------------------------------------------


@dataclass
class State:
    """Where calls are made: a directory of local files, and a bucket."""

    files: FilesPlace
    bucket: ServedBucket

    def plant(self, files: Tree, objects: Tree) -> None:
        """Put these there in place of all others."""
        self.bucket.plant(objects)
        root = Path(tempfile.mkdtemp(dir=self.files.root.parent))
        self.files = FilesPlace(root)
        for path, data in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)

    def seen_files(self) -> Tree:
        """The files that a listing shows: what a killed process was writing has names of its own."""
        return {name: data for name, data in self.files.tree().items() if not is_partial(name.rpartition("/")[2])}


class KilledStep:
    """A step in one store. ``calls`` is how many system calls it is, if that is known."""

    calls = 0

    def __init__(self, state: State, name: str, *, is_local: bool) -> None:
        self._state, self._step, self._is_local = state, STEPS[name], is_local
        self._meaning = Meaning(directories=is_local)

    def plant(self) -> None:
        """Put the tree there."""
        self._state.plant(TREE, TREE)

    async def run(self) -> None:
        """Make the step."""
        place = self._state.files if self._is_local else self._state.bucket
        async with place.operator() as op:
            await by_operator(op, self._step)

    def check(self, error: Error | None) -> None:
        """Look at what is left."""
        check(TREE, self._tree(), self._meaning.of(TREE, self._step), error, self._step)

    def make_again(self) -> None:
        """Make the step again, from what is left, if that means the same."""
        if self._step.arguments.get("if_not_exists"):  # It may find what the killed run has written.
            return
        before, source = self._tree(), self._step.arguments.get("source", "")
        if source.endswith("/") and not any(name.startswith(source) for name in before):
            return  # The killed run has moved all. Of local files it may have left empty directories.
        error, _ = at_its_end(self.run)
        check_refusal(before, self._tree(), self._meaning.of(before, self._step), error, self._step)

    def _tree(self) -> Tree:
        return self._state.seen_files() if self._is_local else self._state.bucket.tree()


class KilledTransfer:
    """A transfer between the bucket and local files."""

    calls = 0

    def __init__(self, state: State, name: str) -> None:
        self._state, self._transfer = state, TRANSFERS[name]

    def plant(self) -> None:
        """Put its trees there."""
        self._state.plant(self._transfer.files, OBJECTS)

    async def run(self) -> None:
        """Make the transfer."""
        async with self._state.bucket.operator() as op:
            await self._transfer.run(op, self._state.files.root)

    def check(self, error: Error | None) -> None:
        """Look at what is left."""
        self._transfer.check(self._state.seen_files(), self._state.bucket.tree(), error)

    def make_again(self) -> None:
        """Make it again, to its end."""
        error, _ = at_its_end(self.run)
        self.check(error)
        assert error is None


def main(seconds: float, seed: int, kills_max: int) -> None:
    """Kill processes until the time is over."""
    os.environ["SSL_CERT_FILE"] = os.devnull  # Each child would read the certificates of the system.
    end, source = time.monotonic() + seconds, random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        state = State(FilesPlace(Path(folder, "root")), ServedBucket())
        calls: list[KilledStep | KilledTransfer] = [
            *(KilledStep(state, name, is_local=is_local) for name in STEPS for is_local in (True, False)),
            *(KilledTransfer(state, name) for name in TRANSFERS),
        ]
        source.shuffle(calls)
        killed = 0
        for call in itertools.cycle(calls):
            if killed >= kills_max or (killed and time.monotonic() > end):
                break
            call.plant()
            if not call.calls:
                error, call.calls = at_its_end(call.run)
                call.check(error)
                call.plant()
            killed += in_child(call.run, 1 + source.randrange(call.calls)) is None
            call.check(KILLED)
            call.make_again()
    sys.stdout.write(f"{killed}\n")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
