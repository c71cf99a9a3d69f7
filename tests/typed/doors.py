"""Calls of the public doors, right ones and wrong ones: a type checker has to find fault with the marked lines alone.

This file is checked, never run: see ``test_type_checkers.py``.
"""

from datetime import UTC, datetime
from pathlib import Path

import aioprefetch as ap
from aioprefetch.operator.options import UriOptions

# --- from_uri, and what takes the same options

operator = ap.Operator.from_uri("s3://bucket", region="eu-west-1", memory_bytes="1 GiB", addressing_style="path")
ap.Operator.from_uri(Path("data"), follow_symlinks=True)
ap.Operator.from_uri("https://host/", auth=("user", "password"), headers=None)
ap.Operator.from_uri("s3://bucket", endpont_url="http://127.0.0.1:9000")  # error
ap.Operator.from_uri("s3://bucket", anon=True)  # error
ap.Operator.from_uri("s3://bucket", signing="headers")  # error
ap.Operator.from_uri("s3://bucket", addressing_style="auto-detect")  # error
ap.Operator.from_uri("s3://bucket", anonymous="yes")  # error
ap.Operator.from_uri("s3://bucket", concurrency="16")  # error
ap.services.S3(bucket="bucket", signing="presigned")
ap.services.S3(bucket="bucket", signing="url")  # error
ap.services.S3.from_uri("s3://bucket", part_bytes="16 MiB")
ap.services.S3.from_uri("s3://bucket", checksum="crc32")
ap.services.S3.from_uri("s3://bucket", checksum="md5")  # error
ap.services.S3.from_uri("s3://bucket", follow_redirects=True)  # error
ap.services.Http.from_uri("https://host/", region="eu-west-1")  # error


def mine(**options: object) -> None:
    """Options of any name are no options of ours."""
    ap.Operator.from_uri("s3://bucket", **options)  # error


def handed_on(options: UriOptions) -> ap.Operator:
    """A function that hands options on is typed by them."""
    return ap.Operator.from_uri("s3://bucket", **options)


# --- readers and reads


async def reads() -> None:
    """An operator."""
    operator.reader("k", policy="random", prefetch_growth="step", block_bytes="1 MiB")
    operator.reader("k", policy=["parquet", "random"])
    operator.reader("k", policy="radnom")  # error
    operator.reader("k", polcy="random")  # error
    operator.reader("k", prefetch_growth="stalls")  # error
    await operator.read("k", offset=5, timeout_seconds=1.0)
    await operator.read("k", ofset=5)  # error
    await operator.read("k", 0, 5)  # error
    for _ in operator.list(""):  # error
        pass
    with operator:  # error
        pass
    await operator.reader("k")  # error
    await operator.read_ranges("k", [(0, 5)], gap_bytes="64 KiB")
    await operator.read_ranges("k", [(0, 5)], gap="64 KiB")  # error
    await operator.write("k", b"", content_type="text/plain", if_not_exists=True)
    await operator.write("k", b"", contentType="text/plain")  # error
    operator.writer("k", if_not_exist=True)  # error
    await operator.upload("file", "k", storage_class="STANDARD_IA")
    await operator.upload("file", "k", checksum="sha256")
    await operator.upload("file", "k", checksum="SHA256")  # error
    await operator.upload("file", "k", storage="STANDARD_IA")  # error
    await operator.upload("file", "k", on_progress=print)
    await operator.write("k", b"", on_progress=print)  # error
    operator.list("d/", recusive=True)  # error
    await operator.presign("k", method="POST")  # error
    names: list[str] = [entry.path for entry in await operator.list().collect()]
    await operator.delete(names)


# --- files and blocking operators


def files() -> None:
    """Without a loop."""
    ap.sync.open("s3://bucket/k", policy="parquet", region="eu-west-1").read_at(0, 5)
    ap.sync.open(Path("local"), "rb", block_bytes="64 KiB")
    ap.sync.open("s3://bucket/k", "wb", content_type="text/plain", region="eu-west-1")
    ap.sync.open("s3://bucket/k", "r", encoding="utf-8", policy="sequential")
    ap.sync.open("s3://bucket/k", polcy="parquet")  # error
    ap.sync.open("s3://bucket/k", policy="parqet")  # error
    ap.sync.open("s3://bucket/k", "rb", key="AKIA")  # error
    ap.sync.open("s3://bucket/k", "wb", content_typ="text/plain")  # error
    ap.sync.open("s3://bucket/k", "w", encodin="utf-8")  # error
    blocking = ap.sync.BlockingOperator(operator)
    blocking.read("k", offset=5)
    blocking.read("k", ofset=5)  # error
    blocking.view("k", sise=5)  # error
    blocking.stat("k", versio="1")  # error
    blocking.read_ranges("k", [(0, 5)], request_bytes_max="1 MiB")
    blocking.read_ranges("k", [(0, 5)], request_bytes="1 MiB")  # error
    blocking.open("k", policy="random")
    blocking.open("k", region="eu-west-1")  # error
    blocking.open("k", "wb", content_type="text/plain")
    blocking.open("k", "wb", contentType="text/plain")  # error
    blocking.list("d/", glob="d/*")
    blocking.list("d/", globb="d/*")  # error
    blocking.presign("k", expire_seconds=5)  # error
    blocking.download("k", "file", progress=print)  # error


# --- copies


async def copies(options: UriOptions) -> None:
    """Options of the two URLs."""
    await ap.copy("s3://a/x/", "local", src_options={"region": "eu-west-1"}, dst_options=options)
    await ap.copy("s3://a/x/", "local", src_options={"regoin": "eu-west-1"})  # error
    ap.sync.copy("s3://a/x/", "local", src_options=options, dst_options={"concurrency": 16})
    ap.sync.copy("s3://a/x/", "local", dst_options={"concurrency": "16"})  # error


# --- layers and scans


async def scans() -> None:
    """Tables."""
    operator.layer(ap.layers.RetryLayer(attempts_max=2, progress_bytes="1 MiB"))
    operator.layer(ap.layers.RetryLayer(attempts=2))  # error
    ap.parquet.scan(operator, "t.parquet", columns=["a"], gap_bytes="64 KiB")
    ap.parquet.scan(operator, "t.parquet", colums=["a"])  # error
    await ap.parquet.read_table(operator, "t.parquet", columns=["a"], batch_bytes="64 MiB")
    await ap.parquet.read_table(operator, "t.parquet", colums=["a"])  # error
    ap.parquet.scan(operator, "t/", partitioning="hives")  # error
    ap.lance.scan(operator, "t.lance", rows=(0, 5))
    await ap.lance.read_table(operator, "t.lance", row=(0, 5))  # error
    ap.lance.scan(operator, "t.lance", version=datetime.now(UTC), filters=[("a", ">", 1)], blobs="descriptions")
    await ap.lance.read_table(operator, "t.lance", tag="first", columns=["a", "_rowid"])
    ap.lance.scan(operator, "t.lance", version="first")  # error
    ap.lance.scan(operator, "t.lance", blobs="descriptors")  # error
    dataset = await ap.lance.open_dataset(operator, "t.lance")
    await dataset.take([1, 2], columns=["a"])
    await dataset.take([1, 2], colums=["a"])  # error


@ap.spark.with_operator("s3://bucket", block_bytes="1 MiB")
def function(operator: object) -> None:
    """A function of Spark."""


@ap.spark.with_operator("s3://bucket", blok_bytes="1 MiB")  # error
def other_function(operator: object) -> None:
    """A function of Spark."""
