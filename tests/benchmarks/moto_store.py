"""moto's S3 in a process of its own: ``python -m tests.benchmarks.moto_store KEYS`` serves until its input ends.

The bucket has as many objects of two bytes; the endpoint is printed.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.simulator import BUCKET

ROOT = Path(__file__).parents[2]
CONTENT = b"ok"


@contextlib.contextmanager
def moto_store(keys: int) -> Iterator[str]:
    """The endpoint of a server with as many objects."""
    command = [sys.executable, "-m", "tests.benchmarks.moto_store", str(keys)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            endpoint_url = server.stdout.readline().strip()
            assert endpoint_url, "moto's server ended at once"
            yield endpoint_url
        finally:
            server.stdin.close()
            server.wait()


def main(keys: int) -> None:
    """Serve until the input ends."""
    from moto.core.models import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    from aioprefetch.testing.s3_server import CountingS3Server

    with CountingS3Server() as server:
        server.create_bucket(BUCKET)
        # Through the server this would take a minute.
        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        for key in (f"keys/{number:05}" for number in range(keys)):
            backend.put_object(BUCKET, key, CONTENT)
        print(server.endpoint_url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
