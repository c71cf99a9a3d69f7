"""File systems of Arrow over each kind of store, for the tests of the bridge and of the libraries that use it."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aioprefetch as ap
from aioprefetch.testing import CountingS3Server
from tests.stores.s3_options import options_of

STORES = ("memory", "files", "moto")


@contextmanager
def filesystem_over(kind: str, directory: Path, server: CountingS3Server, **options: Any) -> Iterator[Any]:
    """An empty file system over memory, a directory, or a bucket of its own."""
    name = f"arrow-{uuid.uuid4().hex[:12]}"
    if kind == "moto":
        server.create_bucket(name)
        operator = ap.Operator.from_uri(f"s3://{name}/below", **options_of(server), **options)
    elif kind == "files":
        (directory / name).mkdir()
        operator = ap.Operator.from_uri(f"file://{directory / name}", **options)
    else:
        operator = ap.Operator.from_uri(f"memory://{name}", **options)
    filesystem = ap.arrow.filesystem(operator)
    try:
        yield filesystem
    finally:
        filesystem.handler.close()
