"""The files of apache/parquet-testing, of one commit, each by its hash, with what is said of those that are refused.

    python -m tests.files.parquet_testing [URL OF AN ARCHIVE]

fetches them into build/. ``AIOPREFETCH_PARQUET_TESTING`` names a checkout instead.
"""

import hashlib
import io
import os
import sys
import tarfile
import urllib.request
from pathlib import Path
from urllib.error import URLError

COMMIT = "1a2a75127be06fc0123f03ebd36c966f7beda27d"
ARCHIVE = f"https://github.com/apache/parquet-testing/archive/{COMMIT}.tar.gz"
FETCHED = Path(__file__).resolve().parents[2] / "build" / f"parquet-testing-{COMMIT[:7]}"
TIMEOUT_SECONDS = 30
# A line for each file: its SHA-256, its path, and part of the error where it is refused.
LINES = [line.split("  ") for line in Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines()]
HASHES = {line[1]: line[0] for line in LINES}
REFUSED = {line[1]: line[2] for line in LINES if len(line) > 2}


def folder() -> Path | None:
    """Where the files are, if they are here."""
    given = os.environ.get("AIOPREFETCH_PARQUET_TESTING")
    if given:
        return Path(given)
    return FETCHED if FETCHED.is_dir() else None


def checked(path: str, data: bytes) -> bytes:
    """The bytes of a file, which have the hash of the list."""
    found = hashlib.sha256(data).hexdigest()
    if found != HASHES[path]:
        raise ValueError(f"{path} of apache/parquet-testing has the hash {found}; that of {COMMIT} is {HASHES[path]}")
    return data


def fetch(url: str) -> None:
    """Store the files of the list; nothing of an archive with another or without one of them."""
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
        archive = io.BytesIO(response.read())
    with tarfile.open(fileobj=archive) as members:
        stored = {member.name.partition("/")[2]: members.extractfile(member) for member in members if member.isfile()}
        files = {path: checked(path, file.read()) for path in HASHES if (file := stored.get(path)) is not None}
    if missing := HASHES.keys() - files.keys():
        raise ValueError(f"{url} has not {min(missing)}, nor {len(missing) - 1} others")
    made = FETCHED.with_name(f"{FETCHED.name}.{os.getpid()}")
    for path, data in files.items():
        (made / path).parent.mkdir(parents=True, exist_ok=True)
        (made / path).write_bytes(data)
    made.rename(FETCHED)


if __name__ == "__main__" and folder() is None:
    try:
        fetch(*sys.argv[1:] or [ARCHIVE])
    except (URLError, TimeoutError) as error:
        sys.stderr.write(f"apache/parquet-testing is not compared: {ARCHIVE} is out of reach ({error})\n")
