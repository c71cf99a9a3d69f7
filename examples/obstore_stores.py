# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[obspec]", "obstore"]
# ///
"""A store of obstore's under our reader: Azure's where the environment names an account, or else a local directory.

The operator gets the function, not the store: so it can be pickled, and no key travels along. obstore's own retries
are switched off, since the operator's Retry has them.
"""

import asyncio
import os
import pickle
from pathlib import Path

from obstore.store import AzureStore, LocalStore

import aioprefetch as ap


def make_store() -> AzureStore | LocalStore:
    """Called in each process that uses the operator; the keys are found there."""
    account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if account:
        container = os.environ["AZURE_CONTAINER_NAME"]
        return AzureStore(container, account_name=account, retry_config={"max_retries": 0})
    return LocalStore(Path.cwd() / "objects", mkdir=True)


async def main() -> None:
    """Write an object, and read from it with few requests."""
    op = pickle.loads(pickle.dumps(ap.Operator(ap.services.ObspecStore(make_store, prefix="examples"))))
    async with op:
        await op.write("numbers", bytes(range(256)) * 4096)
        async with op.reader("numbers") as reader:
            parts = await reader.read_ranges([(0, 4), (500_000, 500_004), (1_048_572, 1_048_576)])
        print([part.hex() for part in parts])
        print("requests:", op.statistics["action_http_get_request"])
        print([entry.path async for entry in op.list("")])
        await op.delete("numbers")


if __name__ == "__main__":
    asyncio.run(main())
