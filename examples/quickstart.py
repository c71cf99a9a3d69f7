# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch"]
# ///
"""Write an object, read it in all the ways there are, and see how many requests that took.

Runs over ``memory://``; give another URL as the argument (``s3://bucket/prefix``, ``file:///data``) to use that store.
"""

import asyncio
import sys

import aioprefetch as ap

ROWS = 100_000


async def main(url: str = "memory://quickstart") -> None:
    """Everything between opening a store and closing it."""
    async with ap.Operator.from_uri(url) as op:
        written = await op.write("numbers.bin", b"".join(n.to_bytes(8, "big") for n in range(ROWS)))
        print(f"wrote {written.size} bytes, ETag {written.etag}")

        # A reader sends nothing until its first read. That one brings size, version and bytes together.
        async with op.reader("numbers.bin") as reader:
            rows = await asyncio.gather(*(reader.read_at(8 * n, 8) for n in (7, 99_999, 50_000)))
            print("rows:", [int.from_bytes(row, "big") for row in rows])

            reader.seek(-8, 2)
            print("last row:", int.from_bytes(await reader.read(), "big"))

            size = await reader.ensure_size()  # known since the first read: nothing is sent
            first, last = await reader.read_ranges([(0, 8), (size - 8, size)])
            print("first and last:", int.from_bytes(first, "big"), int.from_bytes(last, "big"))

        print("GET requests in all:", op.statistics["action_http_get_request"])

        try:
            await op.read("missing")
        except ap.NotFound as error:  # also a FileNotFoundError
            print(f"{error.kind}, {error.status}: {error.operation} {error.path}")

        async for entry in op.list():
            print("listed:", entry.path, entry.size)
        await op.delete("numbers.bin")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
