"""The page of known complaints has a report and a test for each promise, and each of these tests is there."""

import re
from pathlib import Path

from tests.repository.doc_pages import rows_under
from tests.repository.source_tree import ROOT

PAGE = ROOT / "docs" / "reference" / "complaints.md"
TEST = re.compile(r"\[(test_\w+)\]\(([^)]+\.py)\)")
REPORT = re.compile(r"\[[^\]]*#\d+\]\(https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+\)")
PROMISED = ("## Seeks and small reads", "## Large reads and tables", "## Loops, threads and processes", "## Failures")


def is_there(name: str, path: Path) -> bool:
    """Whether a module has a test of that name."""
    return re.search(rf"def {name}\(", path.read_text("utf-8")) is not None


def test_each_promise_has_its_test() -> None:
    rows = [row for heading in PROMISED for row in rows_under(PAGE, heading)]
    assert len(rows) > 20
    for complaint, promise, cell in rows:
        assert REPORT.search(complaint), f"no report of: {complaint}"
        match = TEST.fullmatch(cell)
        assert match is not None, complaint
        assert is_there(match[1], (PAGE.parent / match[2]).resolve()), f"{match[1]} for: {promise}"
    assert not is_there("test_nothing_of_this_name", Path(__file__).resolve())
