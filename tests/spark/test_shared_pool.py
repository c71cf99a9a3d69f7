"""What the calls in a Python worker share: connections, memory and one look-up of credentials for each principal.

The keys come from a program that a profile names, as those of SSO and roles do; it writes down which process asks.
The functions are made within the tests, so that Spark sends them by value, as it does those of a notebook.
"""

import gc
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

import aioprefetch as ap
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.sync import BlockingOperator
from aioprefetch.testing import Fault, FaultServer, Rule

# PySpark leaves its sockets to the garbage collector.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

ALPHABET = b"abcdefghijklmnopqrstuvwxyz"
KEYS = 8
THREADS = 4
# By which a worker tells the runtimes of these tests from those of others.
MEMORY_BYTES = 77 << 20
PROGRAM = """
echo "$PPID $1" >> "{log}"
echo '{{"Version": 1, "AccessKeyId": "'$1'", "SecretAccessKey": "secret"}}'
"""


class Profile:
    """A profile in a file of AWS. ``lookups`` has, for each process that has asked for its keys, how many times."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "config"
        self._log = directory / "log"
        self._program = directory / "keys.sh"
        self._program.write_text(PROGRAM.format(log=self._log))

    def become(self, key_id: str) -> None:
        """Let it be another principal from now on, and forget who has asked."""
        self.path.write_text(f"[profile counted]\ncredential_process = /bin/sh {self._program} {key_id}\n")
        self._log.write_text("")

    def lookups(self, key_id: str) -> Counter[int]:
        lines = [line.split() for line in self._log.read_text().splitlines()]
        assert {asked for _, asked in lines} <= {key_id}
        return Counter(int(pid) for pid, _ in lines)


@pytest.fixture(scope="module")
def profile(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Profile]:
    """The profile of the workers: with another environment Spark starts workers of their own for these tests."""
    profile = Profile(tmp_path_factory.mktemp("aws"))
    with pytest.MonkeyPatch.context() as patch:
        for environment in (spark.sparkContext.environment, os.environ):
            patch.setitem(environment, "AWS_CONFIG_FILE", str(profile.path))
            patch.setitem(environment, "AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        yield profile


@pytest.fixture
def server(profile: Profile) -> Iterator[FaultServer]:
    """The alphabet under some keys, a little far away, so that calls at once are in flight at once."""
    profile.become("ONE")
    server = FaultServer({f"bucket/{number}": ALPHABET for number in range(KEYS)})
    server.add(Rule(fault=Fault(delay_head_seconds=0.02), times=None))
    ap.sync.run(server.__aenter__())
    yield server
    ap.sync.run(server.__aexit__(None, None, None))


def options_of(server: FaultServer) -> dict[str, Any]:
    """The options of the store, which hold no secret."""
    return {
        "endpoint_url": server.endpoint_url,
        "region": server.region,
        "profile": "counted",
        "memory_bytes": MEMORY_BYTES,
    }


def key_ids(server: FaultServer, start: int = 0) -> set[str]:
    """Who has signed the requests from the one with this number on."""
    heads = [request.headers["authorization"] for request in server.requests[start:]]
    return {head.partition("Credential=")[2].partition("/")[0] for head in heads}


def by_process(rows: Iterable[Row]) -> dict[int, list[Row]]:
    found: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.pid].append(row)
    return found


SCHEMA = (
    "id long, pid long, found string, runtimes long, opened long, opened_by_copies long, sent long, sent_by_copies long"
)


def test_calls_in_turn_share_connections_memory_and_a_look_up(
    spark: SparkSession, profile: Profile, server: FaultServer
) -> None:
    """Files by their URL are of one family, and the copies that the tasks unpickle are of another."""
    options = options_of(server)
    operator = ap.Operator.from_uri("s3://bucket", **options)
    blocking = BlockingOperator(operator)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                path, letter = str(number % KEYS), number % 26
                with ap.sync.open(f"s3://bucket/{path}", **options) as file:
                    found = file.read_at(letter, 1)
                    of_files = file.operator.statistics
                found += blocking.read(path, offset=letter, size=1)
                found += ap.sync.run(operator.read(path, offset=letter, size=1))
                of_copies = operator.statistics
                alive = [one for one in gc.get_objects() if isinstance(one, Runtime) and not one.closed]
                row = {
                    "id": number,
                    "pid": os.getpid(),
                    "found": found.decode(),
                    "runtimes": sum(one.options.memory_bytes == MEMORY_BYTES for one in alive),
                    "opened": of_files["transport_connections_opened"],
                    "opened_by_copies": of_copies["transport_connections_opened"],
                    "sent": of_files["action_http_get_request"],
                    "sent_by_copies": of_copies["action_http_get_request"],
                }
                yield pa.RecordBatch.from_pylist([row])

    tasks, calls = 8, 24
    frame = spark.range(0, calls, 1, tasks).mapInArrow(read, SCHEMA)
    workers = by_process(frame.collect())
    assert len(workers) < tasks, "no worker was used again"
    assert sorted(row.id for rows in workers.values() for row in rows) == list(range(calls))
    for rows in workers.values():
        assert all(row.found == 3 * chr(ALPHABET[row.id % 26]) for row in rows)
        assert {(row.opened, row.opened_by_copies) for row in rows} == {(1, 1)}
        assert sorted(row.sent for row in rows) == list(range(1, len(rows) + 1))
        assert sorted(row.sent_by_copies for row in rows) == list(range(2, 2 * len(rows) + 1, 2))
        assert {row.runtimes for row in rows} == {2}
    assert server.connections == 2 * len(workers)
    assert profile.lookups("ONE") == dict.fromkeys(workers, 2)
    assert key_ids(server) == {"ONE"}

    seen, connections = len(server.requests), server.connections
    profile.become("TWO")
    workers = by_process(frame.collect())
    for rows in workers.values():
        assert {(row.opened, row.opened_by_copies) for row in rows} == {(1, 1)}
        assert sorted(row.sent for row in rows) == list(range(1, len(rows) + 1))
    assert server.connections == connections + 2 * len(workers)
    assert profile.lookups("TWO") == dict.fromkeys(workers, 2)
    assert key_ids(server, seen) == {"TWO"}
    blocking.close()


def test_calls_at_once_open_as_many_connections_as_there_are_of_them(
    spark: SparkSession, profile: Profile, server: FaultServer
) -> None:
    options = options_of(server)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def letter(number: int) -> dict[str, Any]:
            with ap.sync.open(f"s3://bucket/{number % KEYS}", **options) as file:
                found = file.read_at(number % 26, 1).decode()
                opened = file.operator.statistics["transport_connections_opened"]
            return {"id": number, "pid": os.getpid(), "found": found, "opened": opened}

        with ThreadPoolExecutor(THREADS) as pool:
            for batch in batches:
                yield pa.RecordBatch.from_pylist(list(pool.map(letter, batch["id"].to_pylist())))

    tasks, calls = 6, 6 * KEYS
    frame = spark.range(0, calls, 1, tasks).mapInArrow(read, "id long, pid long, found string, opened long")
    workers = by_process(frame.collect())
    assert len(workers) < tasks, "no worker was used again"
    assert sorted(row.found for rows in workers.values() for row in rows) == sorted(
        chr(ALPHABET[number % 26]) for number in range(calls)
    )
    opened = {pid: max(row.opened for row in rows) for pid, rows in workers.items()}
    assert all(1 < count <= THREADS for count in opened.values()), opened
    assert server.connections == sum(opened.values())
    assert profile.lookups("ONE") == dict.fromkeys(workers, 1)
