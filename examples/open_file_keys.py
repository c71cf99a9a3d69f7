# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch"]
# ///
"""Hadoop's `openFile()`: a status that saves a request, hints by `opt`, and a `must` that fails.

A key that `opt` does not know is ignored; one that `must` does not know, or cannot do, is an error of `build`, before
any request. A policy is a hint by either: the first known one of a list is taken.
"""

import asyncio

import aioprefetch as ap

POLICY = "fs.option.openfile.read.policy"


async def main() -> None:
    """Open an object by its status, also when it was overwritten, and by mandatory keys."""
    async with ap.Operator.from_uri("memory://open-file") as op:
        await op.write("logs/a.txt", b"0123456789" * 1000)
        (status,) = [entry async for entry in op.list("logs/")]  # A listing has all that an open needs.
        builder = op.open_file(status.path).with_status(status)
        builder.opt(POLICY, "vendor.special, sequential").opt("fs.vendor.unknown", "ignored")
        async with await builder.build() as reader:
            print("known without a request:", reader.size, reader.etag == status.etag, reader.policy)
            print(await reader.read(10))

        await op.write("logs/a.txt", b"other bytes")
        await op.aclose()  # Drops what is resident. The status pins the version that was listed.
        async with await builder.build() as reader:
            try:
                await reader.read(10)
            except ap.ObjectChanged as error:
                print("overwritten:", error.kind)

        for key, value in (("fs.vendor.unknown", "1"), ("fs.s3a.select.sql", "SELECT 1"), (POLICY, "vendor.special")):
            try:
                await op.open_file("logs/a.txt").must(key, value).build()
                print(f"must({key}): opened")
            except (ValueError, ap.Unsupported) as error:
                print(f"must({key}): {type(error).__name__}")


asyncio.run(main())
