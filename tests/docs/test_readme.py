"""The README convinces in one screen, and stands on the package index too."""

import re

from tests.benches.source_tree import ROOT

README = (ROOT / "README.md").read_text("utf-8")
LINES_MAX = 70


def test_it_is_one_screen() -> None:
    """One block of code to copy, one picture, one table; the rest is in the documentation."""
    assert len(README.splitlines()) <= LINES_MAX
    assert len(re.findall(r"^```python$", README, re.MULTILINE)) == 1
    assert len(re.findall(r"^!\[", README, re.MULTILINE)) == 1
    assert len(re.findall(r"^\| --- ", README, re.MULTILINE)) == 1


def test_its_links_are_absolute() -> None:
    """The package index shows the text alone."""
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith("https://")] == []
