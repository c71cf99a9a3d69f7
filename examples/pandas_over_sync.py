# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[s3,parquet]", "pandas"]
# ///
"""pandas and zipfile, which know nothing of asyncio, read objects through ``ap.sync.open``.

The file is an ``io.RawIOBase``: what takes a binary file takes it. Runs in a directory of its own; put ``s3://...``
in the place of the URL, with the store's options as keywords, to read from there.
"""

import io
import tempfile
import zipfile

import pandas as pd

import aioprefetch as ap

ROWS = 10_000


def main() -> None:
    """Write three files, and read them as pandas and zipfile would."""
    table = pd.DataFrame({"id": range(ROWS), "value": [n / 7 for n in range(ROWS)], "name": "some text"})
    with tempfile.TemporaryDirectory() as folder:
        operator = ap.Operator.from_uri(f"file://{folder}")
        with ap.sync.BlockingOperator(operator) as op:
            op.write("table.parquet", table.to_parquet(row_group_size=1_000))
            op.write("table.csv", table.to_csv(index=False).encode())
            op.write("table.zip", zipped(table.to_csv(index=False)))

            with ap.sync.open("table.parquet", operator=operator) as file:
                values = pd.read_parquet(file, columns=["value"])
            print("parquet:", len(values), "rows, requests:", op.statistics["action_http_get_request"])

        # Without an operator: one file from one URL, which closes its store with itself.
        with ap.sync.open(f"file://{folder}/table.csv") as file:
            print("csv:", len(pd.read_csv(file)), "rows")
        with ap.sync.open(f"file://{folder}/table.zip") as file, zipfile.ZipFile(file) as archive:
            print("zip:", archive.namelist(), len(archive.read("table.csv").splitlines()) - 1, "rows")


def zipped(text: str) -> bytes:
    """An archive with one member."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("table.csv", text)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
