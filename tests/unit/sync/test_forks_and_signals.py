"""What waits for the loop thread meets forks and signals: children get loops of their own, waits can be broken off."""

from collections.abc import Callable

from aioprefetch.testing.conformance.suite import checks

Program = Callable[[str], str]

SHARED = """
import asyncio, os, signal, sys, threading, time
from aioprefetch.errors import Closed, WrongLoop
from aioprefetch.sync import iterate, run
from aioprefetch.sync.loop_thread import CANCEL_SECONDS_MAX, loop_thread, process_lock

def child(work):
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException as error:
            print("child:", repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    signal.alarm(30)
    assert os.waitpid(pid, 0)[1] == 0
    signal.alarm(0)

# Python raises no KeyboardInterrupt in a process that was started with SIGINT ignored, as jobs in the background are.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def count(number):
    for one in range(number):
        await asyncio.sleep(0)
        yield one

async def here():
    return os.getpid()
"""


def test_a_fork_while_another_thread_holds_the_lock(program: Program) -> None:
    source = """
held, done = threading.Event(), threading.Event()
def hold():
    with process_lock():
        held.set()
        done.wait(20)
holder = threading.Thread(target=hold)
holder.start()
held.wait(5)
def work():
    assert run(here(), timeout_seconds=10) == os.getpid()
child(work)
done.set()
holder.join()
print("both")
"""
    assert program(SHARED + source) == "both\n"


@checks("reliability:C19")
def test_a_fork_with_requests_in_flight(program: Program) -> None:
    source = """
release = run(asyncio.sleep(0, asyncio.Event()))
started, results = threading.Event(), []
async def request():
    started.set()
    await release.wait()
    return os.getpid()
waiter = threading.Thread(target=lambda: results.append(run(request())))
waiter.start()
started.wait(5)
def work():
    assert run(here(), timeout_seconds=10) == os.getpid()
    assert list(iterate(count(50))) == list(range(50))
child(work)
loop_thread().loop.call_soon_threadsafe(release.set)
waiter.join()
assert results == [os.getpid()]
print("both")
"""
    assert program(SHARED + source) == "both\n"


def test_a_file_of_a_child_reads_the_version_that_its_parent_knows(program: Program) -> None:
    """A read beyond the end tells the size without a version; the child's file holds to that too."""
    source = """
import aioprefetch as ap
op = ap.Operator.from_uri("memory://sizes-in-children")
run(op.write("k", bytes(1000)))
file = ap.sync.SyncFile(op, "k", {"policy": "random"})
file.seek(10**8)
assert file.read(10) == b"" and file.size == 1000
run(op.write("k", bytes(5000)))
def work():
    try:
        file.seek(0)
        file.read(10)
    except ap.ObjectChanged:
        assert file.size == 1000
    else:
        raise AssertionError
child(work)
file.close()
print("both")
"""
    assert program(SHARED + source) == "both\n"


def test_an_iterator_stays_with_the_process_that_made_it(program: Program) -> None:
    source = """
items = iterate(count(50), window_items=3)
assert next(items) == 0
def work():
    try:
        next(items)
    except WrongLoop as error:
        assert "make one in this process" in str(error)
    else:
        raise AssertionError
    items.close()
    assert list(iterate(count(3))) == [0, 1, 2]
child(work)
def forget():
    global items
    del items
    import gc
    gc.collect()
child(forget)
assert list(items) == list(range(1, 50))
print("both")
"""
    assert program(SHARED + source) == "both\n"


def test_a_child_forked_in_the_middle_of_a_wait_does_not_wait_for_ever(program: Program) -> None:
    source = """
parent = os.getpid()
children = []
def fork(*_):
    pid = os.fork()
    if pid:
        children.append(pid)
        loop_thread().loop.call_soon_threadsafe(forked.set)
signal.signal(signal.SIGUSR1, fork)
forked = asyncio.Event()
async def hang():
    os.kill(parent, signal.SIGUSR1)
    await forked.wait()
    return "done"
try:
    result = run(hang())
except Closed as error:
    assert os.getpid() != parent and "fork" in str(error), error
    assert run(here(), timeout_seconds=10) == os.getpid()
    os._exit(0)
signal.alarm(30)
assert result == "done" and os.waitpid(children[0], 0)[1] == 0
print("both")
"""
    assert program(SHARED + source) == "both\n"


@checks("reliability:C21")
def test_an_interrupt_reaches_who_waits_and_cancels(program: Program) -> None:
    source = """
events = []
async def hang(name):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.get_running_loop().create_future()
    finally:
        events.append(name)
async def items():
    yield 1
    await hang("iterate")
for wait in (lambda: run(hang("run")), lambda: list(iterate(items()))):
    try:
        wait()
    except KeyboardInterrupt:
        events.append("interrupted")
assert events == ["run", "interrupted", "iterate", "interrupted"], events
assert run(here()) == os.getpid()
print("goes on")
"""
    assert program(SHARED + source) == "goes on\n"


def test_an_interrupt_at_the_end_of_a_call_costs_no_wait(program: Program) -> None:
    """The thread that waits gets it when it has woken with the result: its wait is not one for a cancellation."""
    source = """
async def interrupt():  # By a signal to the loop's thread, which does not wake the one that waits.
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
begun = time.monotonic()
try:
    run(interrupt())
except KeyboardInterrupt:
    assert time.monotonic() - begun < CANCEL_SECONDS_MAX
    print("at once")
"""
    assert program(SHARED + source) == "at once\n"


def test_a_fork_in_a_call_leaves_the_coroutine_to_the_parent(program: Program) -> None:
    """Neither is its cleaning up run in the child, nor does the child say that a task was lost."""
    source = """
import gc
parent, children, ended = os.getpid(), [], []
def fork(*_):
    children.append(os.fork())
    if children[0]:
        loop = loop_thread().loop
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
signal.signal(signal.SIGUSR1, fork)
async def hang():
    try:
        os.kill(parent, signal.SIGUSR1)
        await asyncio.get_running_loop().create_future()  # which nothing but its task holds
    finally:
        ended.append(os.getpid())
try:
    run(hang())
except (Closed, asyncio.CancelledError):
    pass
if os.getpid() != parent:
    gc.collect()
    assert ended == [], ended
    os._exit(0)
signal.alarm(30)
assert os.waitpid(children[0], 0)[1] == 0
assert ended == [parent]
print("both")
"""
    assert program(SHARED + source) == "both\n"


@checks("reliability:C33")
def test_the_process_ends_quietly_while_an_iterator_is_open(program: Program) -> None:
    source = """
async def items():
    try:
        yield 1
        await asyncio.get_running_loop().create_future()
    finally:
        print("closed", flush=True)
kept = iterate(items())
next(kept)
"""
    assert program(SHARED + source) == "closed\n"


def test_files_keep_working_in_a_cell_of_a_notebook(program: Program) -> None:
    # A cell runs inside a loop, and pandas there calls a file that blocks.
    source = """
import aioprefetch as ap, zipfile, io, tempfile
data = io.BytesIO()
with zipfile.ZipFile(data, "w") as made:
    made.writestr("hello.txt", "hello")
directory = tempfile.TemporaryDirectory()
with open(directory.name + "/a.zip", "wb") as file:
    file.write(data.getvalue())
async def cell():
    with ap.sync.open(f"file://{directory.name}/a.zip") as file, zipfile.ZipFile(file) as opened:
        print(opened.read("hello.txt"))
    with ap.sync.BlockingOperator(ap.Operator.from_uri(f"file://{directory.name}")) as blocking:
        print(len(blocking.read("a.zip")) == len(data.getvalue()))
    try:
        ap.sync.run(here())
    except ap.WrongLoop:
        print("await it")
asyncio.run(cell())
directory.cleanup()
"""
    assert program(SHARED + source) == "b'hello'\nTrue\nawait it\n"


@checks("reliability:C21")
def test_an_interrupt_at_any_line_of_a_call_cancels_what_has_started(program: Program) -> None:
    source = """
started, ended = [], []
async def hang(number):
    started.append(number)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        ended.append(number)

def interrupt_at(nth):
    passed = 0
    def trace(frame, event, argument):
        nonlocal passed
        if not frame.f_code.co_filename.endswith(("loop_thread.py", "call.py", "base_events.py")):
            return None
        if event == "line":
            passed += 1
            if passed == nth:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace
    return trace

thread = loop_thread()
lines = 0
while True:
    coroutine = hang(lines)
    sys.settrace(interrupt_at(lines + 1))
    try:
        thread.run(coroutine, 0.01)
    except KeyboardInterrupt:
        coroutine.close() if lines not in started else None  # the first lines are before anything
        run(here())
        assert started == ended, (lines, started, ended)
        lines += 1
    except TimeoutError:
        break
    finally:
        sys.settrace(None)
assert lines > 20, lines
print("cancelled")
"""
    assert program(SHARED + source) == "cancelled\n"
