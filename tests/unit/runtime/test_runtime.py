"""Runtimes: one per process and loop, gone with it; Operators across loops, forks and pickles."""

import asyncio
import gc
import os
import pickle
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import pytest

import aioprefetch as ap
from aioprefetch.errors import Closed, ConfigInvalid, WrongLoop
from aioprefetch.runtime.family import RuntimeFamily
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import WriteRequest
from tests.probes.programs import completed
from tests.stores.gated_reader import bench

DAY_SECONDS = 86_400.0
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory_bytes": 0},
        {"memory_bytes": 1.5},
        {"memory_bytes": True},
        {"memory_bytes": "1 bushel"},
        {"block_bytes": -1},
        {"prefetch_blocks": -1},
        {"prefetch_blocks": None},
        {"concurrency": 0},
        {"executor_threads": 0},
        {"memory_bytes": 1 << 20, "block_bytes": 2 << 20},
    ],
)
def test_limits_that_cannot_be_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        RuntimeOptions(**wrong)  # type: ignore[arg-type]
    assert next(iter(wrong)) in str(caught.value)
    assert caught.value.operation == "configure"


async def test_the_time_of_day_is_that_of_the_system() -> None:
    async with ap.Operator.from_uri("memory://") as op:
        before = time.time()
        assert before - 0.01 <= op.runtime().wall_now() <= time.time() + 0.01


@pytest.mark.virtual
async def test_the_time_of_day_goes_on_with_the_clock_of_the_loop() -> None:
    async with ap.Operator.from_uri("memory://") as op:
        before = op.runtime().wall_now()
        await asyncio.sleep(DAY_SECONDS)
        assert op.runtime().wall_now() - before == pytest.approx(DAY_SECONDS, abs=0.01)


async def test_one_runtime_for_each_loop() -> None:
    family = RuntimeFamily(RuntimeOptions())
    assert family.existing() is None
    here = family.current(family)
    assert family.current(family) is here is family.existing()
    there: list[Runtime] = []

    async def elsewhere() -> None:
        there.append(family.current(family))
        with pytest.raises(WrongLoop) as caught:
            here.check_loop(operation="read", path="k")
        assert (caught.value.operation, caught.value.path) == ("read", "k")
        await family.leave([family])

    await here.run_blocking(lambda: asyncio.run(elsewhere()))
    assert there[0] is not here
    await family.leave([family])
    assert here.closed
    again = family.current(family)
    assert again is not here
    await family.leave([family])


@checks("reliability:C16")
def test_a_loop_that_is_gone_leaves_no_runtime_behind() -> None:
    """asyncio.run again and again with one Operator: neither loops nor blocks pile up."""
    operator = ap.Operator(ap.services.Memory("pile"), memory_bytes=1 << 20, block_bytes=1 << 16)
    operator.service.store.put(WriteRequest(path="k"), bytes(1 << 19))  # type: ignore[attr-defined]
    runtimes: list[weakref.ref[Runtime]] = []

    async def main() -> None:
        async with operator.reader("k") as reader:
            assert len(await reader.read_at(0, 1 << 19)) == 1 << 19
        runtimes.append(weakref.ref(operator.runtime()))

    for _ in range(4):
        asyncio.run(main())
    gc.collect()
    assert len([one for one in runtimes if one() is not None]) <= 1
    assert operator.statistics["stream_read_operations"] == 4
    assert operator.statistics["action_http_get_request"] == 4 * 3  # a block, then up to a quarter of the memory


async def test_statistics_outlive_closing() -> None:
    async with bench() as b:
        async with b.reader() as reader:
            await reader.read_at(0, 10)
        await b.operator.aclose()
        assert b.operator.statistics["action_http_get_request"] == 1
        assert b.operator.statistics["stream_read_bytes"] == 10
        await b.operator.read("k", size=5)
        assert b.operator.statistics["action_http_get_request"] == 2


async def test_closing_gives_the_blocks_back() -> None:
    async with bench() as b:
        reader = b.reader()
        await reader.read_at(0, 300_000)
        runtime = b.runtime
        assert runtime.budget.used_bytes >= 300_000
        await b.operator.aclose()
        await reader.aclose()
        del reader
        gc.collect()
        assert runtime.budget.used_bytes == 0


async def test_a_reader_outlives_its_operator_only_as_closed() -> None:
    async with bench() as b:
        reader = b.reader()
        await reader.read_at(0, 10)
        await b.operator.aclose()
        for offset in (0, 500_000):  # A hit and a miss.
            with pytest.raises(Closed) as caught:
                await reader.read_at(offset, 10)
            assert (caught.value.operation, caught.value.path) == ("read_at", "k")
        await reader.aclose()
        assert await b.operator.read("k", size=3) == b.data[:3]


@checks("reliability:C17")
def test_one_operator_on_two_loops_and_a_reader_on_the_wrong_one() -> None:
    operator = ap.Operator(ap.services.Memory("two-loops"))
    readers = []

    async def first() -> None:
        await operator.write("k", b"0123456789")
        readers.append(operator.reader("k"))
        assert await readers[0].read_at(2, 3) == b"234"

    async def second() -> None:
        assert await operator.read("k") == b"0123456789"
        for read in (readers[0].read_at(2, 3), readers[0].read_at(5, 3), readers[0].read(1)):
            with pytest.raises(WrongLoop):
                await read
        with pytest.raises(WrongLoop):
            readers[0].will_need([(0, 5)])
        await readers[0].aclose()
        await operator.aclose()

    asyncio.run(first())
    asyncio.run(second())


async def test_run_blocking_uses_threads_of_its_own_and_ends_them() -> None:
    runtime = Runtime(RuntimeOptions(executor_threads=1))
    name = await runtime.run_blocking(lambda: threading.current_thread().name)
    assert name.startswith("aioprefetch-blocking")
    with pytest.raises(ZeroDivisionError):
        await runtime.run_blocking(divmod, 1, 0)
    await runtime.aclose()


async def test_shared_makes_one_of_each() -> None:
    runtime = Runtime(RuntimeOptions())
    assert runtime.peek("x") is None
    made: list[int] = runtime.shared("x", list)
    assert runtime.shared("x", list[int]) is made is runtime.peek("x")
    await runtime.aclose()


CANARY = "CANARY-secret"


@checks("reliability:P18", "reliability:K05")
def test_operators_pickle_without_secrets(tmp_path: Path) -> None:
    """By recipe, in process and to a fresh process, with references in place of literals."""
    s3 = ap.Operator.from_uri(
        "s3://bucket/prefix", access_key_id="AK" + CANARY, secret_access_key=CANARY, session_token=CANARY, region="x"
    ).layer(ap.layers.RetryLayer())
    fs = ap.Operator.from_uri(f"file://{tmp_path}", memory_bytes=1 << 24)
    memory = ap.Operator(ap.services.Memory("pickled"), block_bytes=1 << 16)
    for operator in (s3, fs, memory):
        data = pickle.dumps(operator)
        assert CANARY.encode() not in data
        assert CANARY not in repr(operator)
        twin = pickle.loads(data)
        assert repr(twin) == repr(operator)
        assert twin.options == operator.options
        assert twin.info == operator.info
    (tmp_path / "k").write_bytes(b"hello")
    script = """
        import asyncio, pickle, sys
        operators = pickle.loads(bytes.fromhex(sys.argv[1]))
        async def main():
            fs, memory, s3 = operators
            await memory.write("k", b"abc")
            print(await fs.read("k"), await memory.read("k"), s3.info.principal is not None)
            for one in operators:
                await one.aclose()
        asyncio.run(main())
    """
    found = _run(script, pickle.dumps((fs, memory, s3)).hex())
    assert found == "b'hello' b'abc' True"


def test_a_private_store_does_not_pretend_to_pickle() -> None:
    with pytest.raises(ConfigInvalid, match="memory://name"):
        pickle.dumps(ap.Operator(ap.services.Memory()))


async def test_family_and_stack_survive_pickling_together() -> None:
    base = ap.Operator(ap.services.Memory("fam"))
    derived = base.layer(ap.layers.RetryLayer(attempts_max=7))
    one, two = pickle.loads(pickle.dumps((base, derived)))
    assert one.runtime() is two.runtime()
    assert (one.layers[-1], two.layers[-1]) == (base.layers[-1], derived.layers[-1])
    await one.aclose()


@checks("reliability:C19", "reliability:K28")
def test_an_operator_works_before_and_after_a_fork() -> None:
    """The child never touches the parent's runtime; a reader of the parent is refused there."""
    script = """
        import asyncio, os, sys
        import aioprefetch as ap

        op = ap.Operator(ap.services.Memory("fork"), memory_bytes=1 << 20, block_bytes=1 << 16)
        data = bytes(range(256)) * 1024

        async def use():
            reader = op.reader("k")
            for offset in range(0, len(data), 50_000):
                assert await reader.read_at(offset, 100) == data[offset:offset + 100]
            return reader

        async def parent():
            await op.write("k", data)
            reader = await use()
            view = await reader.view_at(0, 10)
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    asyncio._set_running_loop(None)
                    asyncio.run(child(reader))
                    del view
                    code = 0
                finally:
                    os._exit(code)
            status = os.waitpid(pid, 0)[1]
            assert await reader.read_at(0, 10) == bytes(view)
            await reader.aclose()
            await op.aclose()
            print("parent ok", os.waitstatus_to_exitcode(status))

        async def child(reader):
            try:
                await reader.read_at(0, 10)
            except ap.errors.WrongLoop as error:
                assert "process" in str(error), error
            else:
                raise AssertionError("the parent's reader was served")
            await (await use()).aclose()
            assert op.statistics["stream_read_opened"] == 1, op.statistics
            await op.aclose()

        asyncio.run(parent())
    """
    assert _run(script) == "parent ok 0"


def _run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments]
    done = completed(command, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()
