"""Plain English: what no good writer needs, in errors, docstrings and names of tests.

Style beyond that is a matter of taste, and of the review: docs/guides/contributing.md.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository.source_tree import PACKAGE, ROOT, parse, project_files, python_files, statements

# On the right: what the field says.
HABITS: dict[str, str] = {
    r"cannot be meant": "invalid",
    r"is none of": "must be one of",
    r"the wall's clock": "wall-clock time",
    r"at (?:most|least) so (?:many|much)": "a number: 'at most N', or the name of the limit",
    r"that there (?:is|are) not\b": "unknown, missing",
}
HABIT = re.compile("|".join(rf"\b(?P<h{index}>{habit})\b" for index, habit in enumerate(HABITS)), re.IGNORECASE)
# A docstring of a pronoun says nothing where it is read alone.
BARE = re.compile(r'"""(?:The same|Both|Nothing|It is gone|As many \w+|They were \w+ there|See ``\w+``)\.?"""')
# A docstring begins with a noun or a verb, and not with the question that it answers or with what stands above it.
OPENING = re.compile(r'^\s*[rR]?"""(?:What|Where|Who|Which|And|Nor|As ever|See) ')
# In errors and logs: "X is no Y" reads as if there were no Y at all. "There is no Y" is for that.
IS_NO = re.compile(r"(?<!there )\b(?:is|are|was|were) no\b(?! longer\b)", re.IGNORECASE)

PAGES = [path for path in project_files() if path.suffix == ".md" and path.name != "CHANGELOG.md"]
SOURCES = [path for path in (*python_files(PACKAGE), *python_files(ROOT / "tests")) if path != Path(__file__)]


def habits_in(path: Path) -> Iterator[str]:
    """Where a file has a habit, and what to say instead."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if match := HABIT.search(line):
            said = HABITS[list(HABITS)[int(str(match.lastgroup)[1:])]]
            yield f"{path.relative_to(ROOT)}:{number}: {match[0]!r}; say: {said}"
        if match := BARE.search(line):
            yield f"{path.relative_to(ROOT)}:{number}: {match[0]} says nothing"


@pytest.mark.parametrize("paths", [pytest.param(SOURCES, id="sources"), pytest.param(PAGES, id="pages")])
def test_what_is_written_is_plain(paths: list[Path]) -> None:
    """Comments, docstrings, errors and pages say what the field says."""
    assert [habit for path in paths for habit in habits_in(path)] == []


def docstrings_in(path: Path) -> Iterator[tuple[int, str]]:
    """The first lines of a module's docstrings, with their numbers."""
    lines = path.read_text("utf-8").splitlines()
    for node in statements(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, lines[node.lineno - 1]


def texts_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The string literals of a module, with their lines, and without docstrings."""
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            yield node.lineno, node.value


def test_the_product_says_what_a_thing_is() -> None:
    """A docstring begins with the thing, and an error says "is not a Y" or "is not a valid Y"."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip()!r}"
        for path in python_files(PACKAGE)
        for texts, pattern in ((docstrings_in(path), OPENING), (texts_in(parse(path)), IS_NO))
        for line, text in texts
        if pattern.search(text)
    ]
    assert found == []


def test_the_check_bites(tmp_path: Path) -> None:
    """What must be refused is refused."""
    for text in ("it is none of them", "at most so many bytes", "an option that there is not", '"""The same."""'):
        assert HABIT.search(text) or BARE.search(text), text
    for text in ("as many as there are", "so many that", "whatever you like", "an answer", "one of those of which"):
        assert not HABIT.search(text), text
    for text in ('"""What is read."""', 'r"""Where a line ends."""', '"""Which rows."""', '"""See ``X``."""'):
        assert OPENING.search(text), text
    assert not OPENING.search('"""Whether it is read."""')
    module = tmp_path / "module.py"
    module.write_text('"""One."""\nx = 1  # two\ny = "three"\n')
    assert list(docstrings_in(module)) == [(1, '"""One."""')]
    tree = ast.parse('"""It is no text."""\nraise ValueError(f"{1} is no text")')
    assert list(texts_in(tree)) == [(2, " is no text")]
    assert IS_NO.search(" is no text")
    assert not IS_NO.search("there is no text, and it is no longer wanted")
