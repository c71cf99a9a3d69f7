# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[zarr]", "numpy", "zarr"]
# ///
"""Arrays of zarr over any store: in shards, of which a few chunks are read with few requests.

The store is in memory, so that the example runs anywhere; with ``s3://bucket/prefix`` in its place it is S3.
"""

import numpy as np
import zarr

import aioprefetch as ap


def main() -> None:
    """Write a year of maps, read one day and one place."""
    op = ap.Operator.from_uri("memory://zarr-arrays")
    with ap.zarr.Store(op, "weather") as store:
        days = np.arange(48, dtype="f4")
        array = zarr.create_array(
            store, name="t", shape=(48, 256, 256), chunks=(8, 32, 32), shards=(24, 256, 256), dtype="f4"
        )
        array[:] = days[:, None, None] + np.linspace(0, 1, 256 * 256, dtype="f4").reshape(256, 256)

        before = store.operator.statistics["action_http_get_request"]
        opened = zarr.open_array(store, path="t", mode="r")
        print("one day:", opened[7].shape, "one place:", opened[:, 0, 0][:3])
        print("requests:", store.operator.statistics["action_http_get_request"] - before)


if __name__ == "__main__":
    main()
