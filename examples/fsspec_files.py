# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[fsspec]", "fsspec"]
# ///
"""Files by URL through fsspec: an archive, lines of a compressed text, many ranges at once.

The store is in memory, so that the example runs anywhere; with ``aioprefetch+s3://bucket/...``, or ``s3://`` after
``ap.fsspec.register("s3")``, and ``storage_options`` it is S3. fsspec_urls.py has the same with pandas.
"""

import zipfile

import fsspec

import aioprefetch as ap

URL = "aioprefetch+memory://files"


def main() -> None:
    """Write an archive and a text, and read parts of them."""
    ap.fsspec.register("s3")  # From here on s3:// is ours in this process.
    fs = fsspec.filesystem("aioprefetch+memory")
    with fsspec.open(f"{URL}/archive.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for number in range(1_000):
            archive.writestr(f"member-{number}", f"the member {number}" * 1_000)
    with fsspec.open(f"{URL}/lines.txt.gz", "wt", compression="infer") as file:
        file.writelines(f"line {number}\n" for number in range(10_000))

    statistics = fs.place_of("files").operator.statistics
    with fsspec.open(f"{URL}/archive.zip") as file, zipfile.ZipFile(file) as archive:
        print("members:", len(archive.namelist()), archive.read("member-567")[:14].decode())
    print("requests:", statistics["action_http_get_request"])
    with fsspec.open(f"{URL}/lines.txt.gz", "rt", compression="infer") as file:
        print("lines:", sum(1 for _ in file))
    ranges = fs.cat_ranges(["files/archive.zip"] * 3, [0, 100, 5_000], [4, 104, 5_004])
    print("ranges:", [len(part) for part in ranges], "found:", fs.glob("files/*.gz"))
    fs.close()


if __name__ == "__main__":
    main()
