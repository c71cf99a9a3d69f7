"""The page of what goes wrong and what is promised then. Its rows stand in the page; their tests are filled in.

``python -m tests.repository.reliability_page`` writes it.
"""

import re
from collections import defaultdict
from pathlib import Path

from tests.repository.source_tree import PACKAGE, ROOT, python_files

PAGE = ROOT / "docs" / "concepts" / "reliability.md"
# A row: its name, fault, promise and tests. The letter is that of the section.
ROW = re.compile(r"^\| (?P<row>[CDIKPSW]\d\d) \| (?P<fault>[^|]+) \| (?P<promise>[^|]+) \|[^|]*\|$", re.MULTILINE)
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


def rows() -> list[str]:
    """The names of the rows, in the order of the page."""
    return [f"reliability:{match['row']}" for match in ROW.finditer(PAGE.read_text("utf-8"))]


def page_text() -> str:
    """The page with the tests of each row."""
    tests = marked_tests()

    def filled(row: re.Match[str]) -> str:
        links = _links(tests[f"reliability:{row['row']}"])
        return f"| {row['row']} | {row['fault']} | {row['promise']} | {links} |"

    return ROW.sub(filled, PAGE.read_text("utf-8"))


def _links(tests: list[tuple[Path, str]]) -> str:
    links = [f"[{name}](../../{path.relative_to(ROOT).as_posix()})" for path, name in tests[:TESTS_MAX]]
    more = len(tests) - TESTS_MAX
    return ", ".join(links) + (f", and {more} more" if more > 0 else "")


if __name__ == "__main__":
    PAGE.write_text(page_text(), "utf-8")
