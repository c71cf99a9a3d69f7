"""The same faults beside every peer: ``python -m tests.libraries.faults`` prints what each makes of them.

The faults and how they are run are in ``aioprefetch.testing.library_suite``; here are the libraries. ``--page`` fills
docs/reference/faults.md in.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from aioprefetch.testing.library_suite import LibraryAdapter, StoreAddress, outcome_table, run_library_suite
from tests.repository.source_tree import ROOT

PAGE = ROOT / "docs" / "reference" / "faults.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
Ranges = Sequence[tuple[int, int]]


def _of_file(file: Any, ranges: Ranges) -> list[bytes]:
    found = []
    for offset, size in ranges:
        file.seek(offset)
        found.append(bytes(file.read(size)))
    return found


class Ours:
    """aioprefetch, which asks for each of two ranges with small blocks alone."""

    def __init__(self, store: StoreAddress) -> None:
        import aioprefetch as ap

        options: dict[str, Any] = {"endpoint_url": store.endpoint_url, "region": store.region}
        options |= {"access_key_id": store.access_key_id, "secret_access_key": store.secret_access_key}
        self._op = ap.sync.BlockingOperator(
            ap.Operator.from_uri(f"s3://{store.bucket}", block_bytes=64 << 10, **options)
        )
        self.read, self.write, self.delete = self._op.read, self._op.write, self._op.delete
        self.copy, self.move = self._op.copy, self._op.move

    def read_ranges(self, key: str, ranges: Ranges) -> list[bytes]:
        with self._op.open(key) as file:
            return _of_file(file, ranges)

    def list(self, prefix: str) -> list[str]:
        return [entry.path for entry in self._op.list(prefix, recursive=True)]


class S3fs:
    """s3fs."""

    def __init__(self, store: StoreAddress) -> None:
        import s3fs

        keys = {"key": store.access_key_id, "secret": store.secret_access_key, "endpoint_url": store.endpoint_url}
        self._fs = s3fs.S3FileSystem(**keys, client_kwargs={"region_name": store.region})
        self._root = f"{store.bucket}/"

    def read(self, key: str) -> bytes:
        return bytes(self._fs.cat_file(self._root + key))

    def read_ranges(self, key: str, ranges: Ranges) -> list[bytes]:
        with self._fs.open(self._root + key, block_size=64 << 10) as file:
            return _of_file(file, ranges)

    def write(self, key: str, data: bytes) -> None:
        with self._fs.open(self._root + key, "wb", block_size=8 << 20) as file:
            file.write(data)

    def list(self, prefix: str) -> list[str]:
        return [path.removeprefix(self._root) for path in self._fs.find(self._root + prefix)]

    def copy(self, source: str, target: str) -> None:
        self._fs.cp_file(self._root + source, self._root + target)

    def move(self, source: str, target: str) -> None:
        self._fs.mv(self._root + source, self._root + target)

    def delete(self, key: str) -> None:
        self._fs.rm_file(self._root + key)


def _client(store: StoreAddress) -> Any:
    import boto3

    keys = {"aws_access_key_id": store.access_key_id, "aws_secret_access_key": store.secret_access_key}
    return boto3.client("s3", endpoint_url=store.endpoint_url, region_name=store.region, **keys)


class Boto3:
    """boto3's client. A move is a copy and a deletion."""

    def __init__(self, store: StoreAddress) -> None:
        self._client, self._bucket = _client(store), store.bucket

    def read(self, key: str) -> bytes:
        return bytes(self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read())

    def read_ranges(self, key: str, ranges: Ranges) -> list[bytes]:
        asked = [f"bytes={offset}-{offset + size - 1}" for offset, size in ranges]
        return [self._client.get_object(Bucket=self._bucket, Key=key, Range=text)["Body"].read() for text in asked]

    def write(self, key: str, data: bytes) -> None:
        import io

        if len(data) > 8 << 20:
            self._client.upload_fileobj(io.BytesIO(data), self._bucket, key)
        else:
            self._client.put_object(Bucket=self._bucket, Key=key, Body=data)

    def list(self, prefix: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def copy(self, source: str, target: str) -> None:
        self._client.copy_object(Bucket=self._bucket, Key=target, CopySource=f"{self._bucket}/{source}")

    def move(self, source: str, target: str) -> None:
        self.copy(source, target)
        self.delete(source)

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=key)


class Obstore:
    """obstore."""

    def __init__(self, store: StoreAddress) -> None:
        from obstore.store import S3Store

        keys: Any = {"access_key_id": store.access_key_id, "secret_access_key": store.secret_access_key}
        at: Any = {"endpoint": store.endpoint_url, "region": store.region, "client_options": {"allow_http": True}}
        self._store = S3Store(store.bucket, **at, **keys)
        self.copy, self.move = self._store.copy, self._store.rename
        self.write, self.delete = self._store.put, self._store.delete

    def read(self, key: str) -> bytes:
        return bytes(self._store.get(key).bytes())

    def read_ranges(self, key: str, ranges: Ranges) -> list[bytes]:
        return [bytes(self._store.get_range(key, start=offset, length=size)) for offset, size in ranges]

    def list(self, prefix: str) -> list[str]:
        return [entry["path"] for page in self._store.list(prefix) for entry in page]


class SmartOpen:
    """smart_open, which has files alone."""

    def __init__(self, store: StoreAddress) -> None:
        self._params, self._root = {"client": _client(store)}, f"s3://{store.bucket}/"

    def _open(self, key: str, mode: str, **params: Any) -> Any:
        import smart_open

        return smart_open.open(self._root + key, mode, transport_params={**self._params, **params})

    def read(self, key: str) -> bytes:
        with self._open(key, "rb") as file:
            return bytes(file.read())

    def read_ranges(self, key: str, ranges: Ranges) -> list[bytes]:
        with self._open(key, "rb") as file:
            return _of_file(file, ranges)

    def write(self, key: str, data: bytes) -> None:
        with self._open(key, "wb", multipart_upload=len(data) > 8 << 20, min_part_size=8 << 20) as file:
            file.write(data)

    def _lacks(self, *arguments: object) -> Any:
        raise NotImplementedError

    list = copy = move = delete = _lacks


class Pyarrow:
    """pyarrow.fs."""

    def __init__(self, store: StoreAddress) -> None:
        from pyarrow import fs

        keys = {"access_key": store.access_key_id, "secret_key": store.secret_access_key, "region": store.region}
        at = {"endpoint_override": store.endpoint_url.removeprefix("http://"), "scheme": "http"}
        self._fs, self._root = fs.S3FileSystem(**at, **keys, allow_bucket_creation=False), f"{store.bucket}/"

    def read(self, key: str) -> bytes:
        with self._fs.open_input_file(self._root + key) as file:
            return bytes(file.read())

    def read_ranges(self, key: str, ranges: Ranges) -> list[bytes]:
        with self._fs.open_input_file(self._root + key) as file:
            return _of_file(file, ranges)

    def write(self, key: str, data: bytes) -> None:
        with self._fs.open_output_stream(self._root + key) as file:
            file.write(data)

    def list(self, prefix: str) -> list[str]:
        from pyarrow import fs

        found = self._fs.get_file_info(fs.FileSelector(self._root + prefix.rstrip("/"), recursive=True))
        return [one.path.removeprefix(self._root) for one in found if one.type == fs.FileType.File]

    def copy(self, source: str, target: str) -> None:
        self._fs.copy_file(self._root + source, self._root + target)

    def move(self, source: str, target: str) -> None:
        self._fs.move(self._root + source, self._root + target)

    def delete(self, key: str) -> None:
        self._fs.delete_file(self._root + key)


LIBRARIES: Mapping[str, Callable[[StoreAddress], LibraryAdapter]] = {
    "aioprefetch": Ours,
    "s3fs": S3fs,
    "boto3": Boto3,
    "obstore": Obstore,
    "smart_open": SmartOpen,
    "pyarrow": Pyarrow,
}


async def measured(libraries: Sequence[str]) -> str:
    """The tables."""
    outcomes = {}
    for name in libraries:
        outcomes[name] = await run_library_suite(LIBRARIES[name])
        for one in outcomes[name]:
            sys.stderr.write(f"{name}: {one.fault.says}: {one} {one.error}\n")
    return outcome_table(outcomes)


def main() -> None:
    """Print the tables, or fill them into their page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", help=", ".join(LIBRARIES))
    parser.add_argument("--page", action="store_true", help="write the tables into the documentation")
    options = parser.parse_args()
    tables = asyncio.run(measured(options.libraries or [*LIBRARIES]))
    if not options.page:
        sys.stdout.write(tables)
        return
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{tables}\n{versions}.\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main()
