"""The page of what goes wrong and what is promised then. ``python -m tests.repository.reliability_page`` writes it."""

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.repository.reliability_rows import CHANGES, DISK, WIRE
from tests.repository.source_tree import PACKAGE, ROOT, python_files

PAGE = ROOT / "docs" / "concepts" / "reliability.md"
HEAD = """# Reliability

For each fault that we know this page says what is promised, and names the tests that hold it. It is made from the marks
of the tests: `@checks("reliability:W07")` at a test puts it into row W07, and a row without a test fails `make test`.
[Conformance](../reference/conformance.md) has the other lists.

## Old data or new data, never partial, never lost

This holds for every call that changes something, in every store and through every interface:

* **Old or new.** A name has the value from before the call or the one that the call was to give it. An error, a
  cancellation or a kill may come at any point between the two.
* **Never partial.** No name has a part of a value. What is being written has a hidden name, or is an upload that was
  not completed, and becomes visible as a whole.
* **Never lost.** A value is gone only if the call was to replace or delete it. A move deletes its source after the copy
  was proven, and not if the source has changed since.
* **A success is done.** A call that returns has done all of it. A call that raises says what is not done; where a store
  cannot tell, the error says that it may have happened.

What a caller can make of it: call it again. The second run ends what the first one began.

A process that is killed can leave hidden files named `.aioprefetch-….tmp` and uploads that were not completed. No
listing shows the files, and later writes beside them remove those that are old; `abort_uploads` removes the uploads.

Beside the single tests, sweeps make each of these calls with each response spoiled, cancelled at each turn of the event
loop, and killed at any time. `make test` runs five seconds of each, and `make test-long` all of it.
"""
FAMILIES: Mapping[str, tuple[str, Mapping[str, tuple[str, str]]]] = {
    "Changes": (
        "Write, append, copy, move, delete, upload, download, sync, and `cp`, `sync` and `rm` of the command line.",
        CHANGES,
    ),
    "Reads from a store": ("What a store or a network does to a read, over S3 and over HTTP.", WIRE),
    "A cache on a disk": ("What happens to the files in which [blocks are kept](caching.md).", DISK),
}
# A mark, the other decorators, and the name of the test. The trees of all tests take seconds.
MARKED = re.compile(r"^ *@checks\(([^)]*)\)$.*?^ *(?:async )?def (test_\w+)", re.MULTILINE | re.DOTALL)
# A row that many tests hold names a few of them.
TESTS_MAX = 6


def marked_tests() -> dict[str, list[tuple[Path, str]]]:
    """The tests that are marked as the check of each line of all lists, in the order of their files."""
    found: dict[str, list[tuple[Path, str]]] = defaultdict(list)
    for path in sorted([*python_files(ROOT / "tests"), *python_files(PACKAGE / "testing")]):
        for rows, test in MARKED.findall(path.read_text("utf-8")):
            for row in re.findall(r'"([^"]+)"', rows):
                found[row].append((path, test))
    return found


def page_text() -> str:
    """The whole page."""
    tests = marked_tests()
    parts = [HEAD]
    for title, (sentence, rows) in FAMILIES.items():
        lines = [f"## {title}", "", sentence, "", "| row | fault | promise | tests |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {row} | {fault} | {promise} | {_links(tests[f'reliability:{row}'])} |"
            for row, (fault, promise) in rows.items()
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _links(tests: list[tuple[Path, str]]) -> str:
    links = [f"[{name}](../../{path.relative_to(ROOT).as_posix()})" for path, name in tests[:TESTS_MAX]]
    more = len(tests) - TESTS_MAX
    return ", ".join(links) + (f", and {more} more" if more > 0 else "")


if __name__ == "__main__":
    PAGE.write_text(page_text(), "utf-8")
