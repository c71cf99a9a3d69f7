# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[parquet,fsspec]", "fsspec", "pandas"]
# ///
"""pandas and fsspec read and write URLs through aioprefetch.

The store is in memory, so that the example runs anywhere; with ``aioprefetch+s3://bucket/...`` and ``storage_options``
in its place it is S3. ``ap.fsspec.register("s3")`` takes ``s3://`` itself over.
"""

import fsspec
import pandas as pd

import aioprefetch as ap

URL = "aioprefetch+memory://example"


def main() -> None:
    """Write three tables, read them back, and see that a transaction is all or nothing."""
    ap.fsspec.register("s3")  # From here on s3:// is ours in this process.
    fs = fsspec.filesystem("aioprefetch+memory")
    table = pd.DataFrame({"id": range(10_000), "value": [n / 7 for n in range(10_000)]})
    table.to_parquet(f"{URL}/tables/1.parquet", row_group_size=1_000)
    table.to_csv(f"{URL}/tables/2.csv", index=False)

    before = fs.place_of("example").operator.statistics["action_http_get_request"]
    values = pd.read_parquet(f"{URL}/tables/1.parquet", columns=["value"])
    requests = fs.place_of("example").operator.statistics["action_http_get_request"] - before
    print("parquet:", len(values), "rows, requests:", requests)
    print("csv:", len(pd.read_csv(f"{URL}/tables/2.csv")), "rows")

    try:
        with fs.transaction, fs.open("example/half", "wb") as file:
            file.write(b"half of it")
            raise RuntimeError("the program fails here")
    except RuntimeError as error:
        print(f"{error}:", fs.glob("example/**/*.parquet"), fs.exists("example/half"))
    fs.close()


if __name__ == "__main__":
    main()
