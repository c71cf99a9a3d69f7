"""One table of clients: each library as its manual makes it. Imports are inside: one library a process.

A client is a context. Of its methods it has those that its library has: ``get`` (a range), ``read`` (an object),
``chunks`` (an object in order, without an end: who reads knows its size), ``file``, ``size``, ``put``, ``count``.
"""

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.content import MIB
from tests.benchmarks.job import Contestant, Target
from tests.benchmarks.our_clients import (
    Ours,
    OursBlocking,
    OursFile,
    OursHedged,
    OursInto,
    OursRead,
    OursReader,
    OursRecorded,
    OursStream,
    OursVerbs,
)
from tests.benchmarks.seam import Client, whole_of

# As s3torchconnector divides objects by default, and a target that no connection of these machines reaches.
MOUNTPOINT_PART_BYTES = 8 << 20
MOUNTPOINT_TARGET_GBPS = 50.0


def trusted(target: Target, word: str) -> dict[str, str]:
    """The certificate to trust, by a library's word for it; nothing without TLS."""
    return {word: target.ca_bundle} if target.ca_bundle else {}


class Obstore(Client):
    """obstore: ``get_range_async``, whose Bytes are looked at where they are; the body of one GET as a stream."""

    async def open(self) -> None:
        import obstore

        self.obstore, self.store = obstore, self.made()
        store, get_range = self.store, obstore.get_range_async
        self.get = lambda key, start, end: get_range(store, key, start=start, end=end)

    def words(self) -> dict[str, Any]:
        """The options of the store, and of the file system on it."""
        target = self.target
        own = {"root_certificate": Path(target.ca_bundle).read_text()} if target.ca_bundle else {}
        return {
            **target.given("endpoint", "region", "access_key_id", "secret_access_key"),
            "virtual_hosted_style_request": False,
            "client_options": {"allow_http": True, **own},
        }

    def made(self) -> Any:
        """The store of the target."""
        from obstore.store import LocalStore, MemoryStore, S3Store

        url = self.target.endpoint_url
        if url.startswith("file://"):
            return LocalStore(url.removeprefix("file://"))
        return MemoryStore() if url.startswith("memory://") else S3Store(self.target.bucket, **self.words())

    async def read(self, key: str) -> Any:
        return await (await self.obstore.get_async(self.store, key)).bytes_async()

    async def chunks(self, key: str, read_bytes: int = MIB) -> AsyncIterator[Any]:
        response = await self.obstore.get_async(self.store, key)
        async for chunk in response.stream(min_chunk_size=read_bytes):
            yield chunk

    async def size(self, key: str) -> int:
        return (await self.obstore.head_async(self.store, key))["size"]

    async def put(self, key: str, data: bytes) -> None:
        await self.obstore.put_async(self.store, key, data, use_multipart=False)

    async def count(self, prefix: str) -> int:
        return len(await self.obstore.list(self.store, prefix.rstrip("/")).collect_async())


class ObstoreReader(Obstore):
    """``open_reader_async``; its buffer is 1 MiB by default."""

    async def chunks(self, key: str, read_bytes: int = MIB) -> AsyncIterator[Any]:
        reader = await self.obstore.open_reader_async(self.store, key)
        while True:
            yield await reader.read(read_bytes)


class ObstoreBlocking(Obstore):
    """``get_range``, which blocks."""

    is_blocking = True

    async def open(self) -> None:
        from obstore import get_range

        store = self.made()
        self.get = lambda key, start, end: get_range(store, key, start=start, end=end)


class ObstoreOnLoop(ObstoreBlocking):
    """The same on the loop, which waits for a disk where it must."""

    is_blocking = False

    async def open(self) -> None:
        await super().open()
        blocking = self.get

        async def get(key: str, start: int, end: int) -> Any:
            return blocking(key, start, end)

        self.get = get


class Opendal(Client):
    """OpenDAL's asynchronous operator."""

    async def open(self) -> None:
        import opendal

        is_memory = self.target.endpoint_url.startswith("memory://")
        operator = opendal.AsyncOperator("memory") if is_memory else opendal.AsyncOperator("s3", **self.words())
        self.operator = operator
        self.read = operator.read
        self.put = operator.write
        self.get = lambda key, start, end: operator.read(key, offset=start, size=end - start)

    def words(self) -> dict[str, str]:
        return {
            "bucket": self.target.bucket,
            "disable_config_load": "true",
            "disable_ec2_metadata": "true",
            **self.target.given("endpoint", "region", "access_key_id", "secret_access_key"),
        }

    async def size(self, key: str) -> int:
        return (await self.operator.stat(key)).content_length


class Aiohttp(Client):
    """A session and a URL that needs no signature here; nothing of S3."""

    async def open(self) -> None:
        import ssl

        from aiohttp import ClientSession, TCPConnector

        target = self.target
        context = ssl.create_default_context(cafile=target.ca_bundle) if target.ca_bundle else True
        connector = TCPConnector(limit=self.in_flight, ssl=context)
        session = await self.stack.enter_async_context(ClientSession(connector=connector, auto_decompress=False))
        self.request: Any = lambda key, **more: session.get(f"{target.endpoint_url}/{target.bucket}/{key}", **more)

    async def get(self, key: str, start: int, end: int) -> bytes:
        async with self.request(key, headers={"Range": f"bytes={start}-{end - 1}"}) as response:
            assert response.status == 206, response.status
            data: bytes = await response.read()
            return data


class Aiobotocore(Client):
    """aiobotocore: ``get_object``, signed for each request."""

    is_slow = True

    async def open(self) -> None:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session

        config = AioConfig(s3={"addressing_style": "path"}, max_pool_connections=self.connections)
        made = get_session().create_client("s3", config=config, **botocore_words(self.target))
        self.client: Any = await self.stack.enter_async_context(made)

    async def read(self, key: str, **more: str) -> Any:
        response = await self.client.get_object(Bucket=self.target.bucket, Key=key, **more)
        async with response["Body"] as body:
            return await body.read()

    async def get(self, key: str, start: int, end: int) -> Any:
        return await self.read(key, Range=f"bytes={start}-{end - 1}")


def botocore_words(target: Target) -> dict[str, Any]:
    """The options of boto3 and aiobotocore, apart from their own kind of configuration."""
    words = target.given("endpoint_url", "region_name", "aws_access_key_id", "aws_secret_access_key")
    return {**words, "verify": target.ca_bundle or None}


class S3fs(Client):
    """s3fs: its coroutine ``_cat_file``, without the loop thread that stands before it for everyone else."""

    is_slow = True

    async def open(self) -> None:
        self.filesystem = filesystem = self.made(asynchronous=True)
        session = await filesystem.set_session()
        self.stack.push_async_callback(session.close)
        bucket = self.target.bucket
        self.get = lambda key, start, end: filesystem._cat_file(f"{bucket}/{key}", start=start, end=end)
        self.read = lambda key: filesystem._cat_file(f"{bucket}/{key}")

    def made(self, **options: Any) -> Any:
        """The file system of the target."""
        import s3fs

        words = self.target.given("endpoint_url", "region", "key", "secret")
        return s3fs.S3FileSystem(
            client_kwargs={"region_name": words.pop("region"), **trusted(self.target, "verify")},
            config_kwargs={"s3": {"addressing_style": "path"}, "max_pool_connections": self.connections},
            **words,
            **options,
        )


class S3fsFile(S3fs):
    """s3fs as everyone drives it, over fsspec's loop thread: ``open`` with its default cache."""

    is_blocking = True

    async def open(self) -> None:
        self.filesystem = self.made()

    def file(self, key: str) -> Any:
        return self.filesystem.open(self.path(key), "rb")


class Boto3(Client):
    """boto3: ``get_object`` of one client, which threads may share; its body read piece by piece."""

    is_blocking = True
    is_slow = True

    async def open(self) -> None:
        import boto3
        from botocore.config import Config

        config = Config(s3={"addressing_style": "path"}, max_pool_connections=self.connections)
        self.client: Any = boto3.client("s3", config=config, **botocore_words(self.target))

    def file(self, key: str, **more: str) -> Any:
        return self.client.get_object(Bucket=self.target.bucket, Key=key, **more)["Body"]

    def read(self, key: str) -> Any:
        return self.file(key).read()

    def get(self, key: str, start: int, end: int) -> Any:
        return self.file(key, Range=f"bytes={start}-{end - 1}").read()


class Mountpoint(Client):
    """mountpoint-s3's client, as s3torchconnector has it. It takes keys from the environment, and no certificate."""

    is_blocking = True

    async def open(self) -> None:
        from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client

        words = self.target.given("endpoint", "region", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        endpoint, region = words.pop("endpoint"), words.pop("region")
        os.environ.update(words, AWS_EC2_METADATA_DISABLED="true")
        self.client = client = MountpointS3Client(
            region,
            endpoint=endpoint,
            force_path_style=True,
            part_size=MOUNTPOINT_PART_BYTES,
            throughput_target_gbps=MOUNTPOINT_TARGET_GBPS,
        )
        bucket = self.target.bucket
        self.get = lambda key, start, end: b"".join(client.get_object(bucket, key, start=start, end=end))

    def read(self, key: str) -> Any:
        return b"".join(self.client.get_object(self.target.bucket, key))

    def chunks(self, key: str, read_bytes: int = MIB) -> Iterator[Any]:
        """The parts that it gives: nothing is joined or cut."""
        yield from self.client.get_object(self.target.bucket, key)

    def size(self, key: str) -> Any:
        return self.client.head_object(self.target.bucket, key).size

    def count(self, prefix: str) -> int:
        return sum(len(page.object_info) for page in self.client.list_objects(self.target.bucket, prefix))


class Pyarrow(Client):
    """Arrow's own file system: ``read_at`` of one open file, which threads may share."""

    is_blocking = True
    is_slow = True

    async def open(self) -> None:
        import pyarrow as pa
        from pyarrow.fs import S3FileSystem

        target = self.target
        # A client opens as many connections as there are threads when it is made.
        if self.in_flight > pa.io_thread_count():
            pa.set_io_thread_count(self.in_flight)
        words = target.given("endpoint_override", "region", "access_key", "secret_key")
        scheme, _, place = words.pop("endpoint_override", "https://").partition("://")
        self.filesystem = S3FileSystem(
            scheme=scheme, endpoint_override=place or None, **trusted(target, "tls_ca_file_path"), **words
        )
        self.files: dict[str, Any] = {}
        self.opening = threading.Lock()

    def file(self, key: str) -> Any:
        return self.filesystem.open_input_file(self.path(key))

    def get(self, key: str, start: int, end: int) -> Any:
        file = self.files.get(key)
        if file is None:
            with self.opening:
                file = self.files.setdefault(key, self.file(key))
        return file.read_at(end - start, start)

    def read(self, key: str) -> Any:
        return whole_of(self.file(key))


class StandardFile(Client):
    """``open`` of the standard library."""

    is_blocking = True

    async def open(self) -> None:
        self.root = Path(self.target.endpoint_url.removeprefix("file://"))

    def file(self, key: str) -> Any:
        return (self.root / key).open("rb")

    def read(self, key: str) -> Any:
        return whole_of(self.file(key))


class FsspecCache(Client):
    """fsspec's ``readahead`` cache with all of an object in it: what a file of s3fs asks for each read."""

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def put(self, key: str, data: bytes) -> None:
        from fsspec.caching import ReadAheadCache

        cache = ReadAheadCache(len(data), lambda start, end: data[start:end], len(data))
        cache._fetch(0, len(data))

        async def get(key: str, start: int, end: int) -> Any:
            return cache._fetch(start, end)

        self.get = get


Factory = Callable[..., Client]

# By the names of the tables. Where one blocks, jobs of many requests at once add the number of its threads.
CLIENTS: dict[str, Factory] = {
    "aioprefetch": OursVerbs,
    "aioprefetch read": OursRead,
    "aioprefetch view": Ours,
    "aioprefetch view, recorded": OursRecorded,
    "aioprefetch read_into": OursInto,
    "aioprefetch view, HedgeLayer": OursHedged,
    "aioprefetch reader": OursReader,
    "aioprefetch stream": OursStream,
    "aioprefetch sync file": OursBlocking,
    "aioprefetch sync.open": OursFile,
    **{f"aioprefetch reader, {policy}": partial(OursReader, policy=policy) for policy in ("random", "adaptive")},
    **dict.fromkeys(("obstore", "obstore get", "obstore get_range", "obstore stream", "obstore LocalStore"), Obstore),
    "obstore get_range, threads": ObstoreBlocking,
    "obstore LocalStore, blocking": ObstoreOnLoop,
    "obstore reader": ObstoreReader,
    "opendal": Opendal,
    "aiohttp": Aiohttp,
    "aiobotocore": Aiobotocore,
    "s3fs": S3fs,
    "s3fs readahead": S3fsFile,
    "boto3": Boto3,
    "boto3 body": Boto3,
    "s3torchconnectorclient": Mountpoint,
    "pyarrow": Pyarrow,
    "pyarrow input file": Pyarrow,
    "open().read()": StandardFile,
    "fsspec readahead cache": FsspecCache,
}


def in_threads(names: Sequence[str], work: Callable[[str], Contestant], at_once: int) -> dict[str, Contestant]:
    """A contestant for each client; where it blocks, its name has the number of threads."""

    def titled(name: str) -> str:
        factory: Any = CLIENTS[name]
        blocks = getattr(factory, "func", factory).is_blocking
        return f"{name.removesuffix(', threads')}, {at_once} threads" if blocks else name

    return {titled(name): work(name) for name in names}
