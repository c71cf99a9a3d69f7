# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[s3]"]
# ///
"""A prefix into a local directory, and again: what is there is left out, what is half there is gone on with.

Set SOURCE to a URL of your own; without it the script makes a directory and copies that.
"""

import asyncio
import os
from pathlib import Path

import aioprefetch as ap


async def main() -> None:
    """Copy twice, and say what it took."""
    source = os.environ.get("SOURCE")
    if source is None:
        source = f"file://{Path.cwd() / 'source'}/"
        async with ap.Operator.from_uri(source) as op:
            for number in range(20):
                await op.write(f"2026/{number:02}.json", b'{"number": %d}' % number)
            await op.write("large.bin", os.urandom(40 << 20))

    def show(progress: ap.CopyProgress) -> None:
        if progress.total is not None and progress.objects == progress.objects_total:
            print(f"{progress.objects} objects, {progress.bytes >> 20} of {progress.total >> 20} MiB")

    target = Path.cwd() / "copy"
    first = await ap.copy(source, target, on_progress=show)
    print("copied:", first.copied, "skipped:", first.skipped)
    again = await ap.copy(source, target, skip_same=True)
    print("copied:", again.copied, "skipped:", again.skipped)
    some = await ap.copy(source, "memory://picked/", glob="2026/0*.json")
    print("by a glob:", some.copied, "failures:", [failure.path for failure in some.failures])


if __name__ == "__main__":
    asyncio.run(main())
