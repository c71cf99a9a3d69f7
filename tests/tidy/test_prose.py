"""Plain English: what we write of the code can be believed without the code beside it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository.source_tree import PACKAGE, ROOT, parse, project_files, python_files, statements

# Habits of our own that a reader had to translate. On the right: what the field says.
HABITS: dict[str, str] = {
    r"whoever": "say who: the caller, a reader, a waiter",
    r"so (?:many|much)(?! (?:as|that|more|less|faster|slower))": "a number: 'at most N', or the name of the limit",
    r"told": "passed, given, configured, reported",
    r"cannot be meant": "invalid",
    r"of late": "recently",
    r"anew": "again",
    r"for good": "permanently",
    r"as ever": "as before",
    r"nobody": "no caller, no reader, nothing",
    r"somebody": "a caller, a reader",
    r"everybody": "all callers, all readers",
    r"is none of": "must be one of",
    r"the wall's clock": "wall-clock time",
    r"does not answer": "does not respond",
    r"an? answer": "a response",
}
HABIT = re.compile("|".join(rf"\b(?P<h{index}>{habit})\b" for index, habit in enumerate(HABITS)), re.IGNORECASE)
# A docstring of a pronoun says nothing where it is read alone.
BARE = re.compile(r'"""(?:The same|Both|Nothing|It is gone|As many \w+|They were \w+ there|See ``\w+``)\.?"""')
# In errors and logs: "X is no Y" reads as if there were no Y at all. "There is no Y" is for that.
IS_NO = re.compile(r"(?<!there )\b(?:is|are|was|were) no\b(?! longer\b)", re.IGNORECASE)

# Habits that the product's comments and docstrings have left behind. On the right: what the field says.
PRODUCT_HABITS: dict[str, str] = {
    r"whatever": "for any, for every, always",
    r"what (?:is|are) no": "say what it is: an invalid length, another object",
    r"(?<!there )(?:is|are|was|were) no(?! longer)(?= \w)": "is not a",
    r"br(?:eaks?|oke|oken) off": "cancel, cut off",
    r"on (?:its|their) way": "in flight",
    r"under way": "in progress, pending",
    r"g(?:ives?|ave|iven) back": "release, return",
    r"as \w+ ha(?:s|ve) it": "as in",
}
PRODUCT_HABIT = re.compile("|".join(rf"\b(?:{habit})\b" for habit in PRODUCT_HABITS), re.IGNORECASE)
# A docstring begins with a noun or a verb, and not with the question that it answers or with what stands above it.
OPENING = re.compile(r'^\s*[rR]?"""(?:What|Where|Who|Which|And|Nor|As ever|See) ')

COMMENT = re.compile(r"(?:^|\s)#(?:$| )")

PAGES = [path for path in project_files() if path.suffix == ".md" and path.name != "CHANGELOG.md"]
SOURCES = [path for path in (*python_files(PACKAGE), *python_files(ROOT / "tests")) if path != Path(__file__)]


def habits_in(path: Path) -> list[str]:
    """Where a file has a habit, and what to say instead."""
    lines = path.read_text("utf-8").splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        if match := HABIT.search(line):
            said = HABITS[list(HABITS)[int(str(match.lastgroup)[1:])]]
            found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]!r}; say: {said}")
        if match := BARE.search(line):
            found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]} says nothing")
    return found


@pytest.mark.parametrize("paths", [pytest.param(SOURCES, id="sources"), pytest.param(PAGES, id="pages")])
def test_what_is_written_is_plain(paths: list[Path]) -> None:
    """Comments, docstrings, errors and pages say what the field says."""
    assert [habit for path in paths for habit in habits_in(path)] == []


def prose_in(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a module's comments and docstrings, with their numbers."""
    lines = path.read_text("utf-8").splitlines()
    yield from ((number, line) for number, line in enumerate(lines, 1) if COMMENT.search(line))
    for node in statements(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from enumerate(lines[node.lineno - 1 : node.end_lineno], node.lineno)


def test_the_product_says_what_a_thing_is() -> None:
    """Comments and docstrings of the product name things, and need no relative clause for it."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()!r}"
        for path in python_files(PACKAGE)
        for number, line in prose_in(path)
        if PRODUCT_HABIT.search(line) or OPENING.search(line)
    ]
    assert found == []


def texts_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The string literals of a module, with their lines, and without docstrings."""
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            yield node.lineno, node.value


def test_errors_say_what_is_not_valid() -> None:
    """Error texts say "is not a Y" or "is not a valid Y"."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text!r}"
        for path in python_files(PACKAGE)
        for line, text in texts_in(parse(path))
        if IS_NO.search(text)
    ]
    assert found == []


def test_names_of_tests_are_plain() -> None:
    """The same habits, in names."""
    names = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in python_files(ROOT / "tests")
        for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))
        if HABIT.search(name.replace("_", " "))
    ]
    assert names == []


def test_the_check_bites(tmp_path: Path) -> None:
    """What must be refused is refused."""
    for text in ("whoever reads", "at most so many bytes", "it was told", "an answer", '"""The same."""'):
        assert HABIT.search(text) or BARE.search(text), text
    for text in ("as many as there are", "so much more", "so many that", "retold", "responses"):
        assert not HABIT.search(text), text
    for text in (
        "for what is no record",
        "it is no error",
        "a request is broken off",
        "bytes on their way",
        "reads under way",
    ):
        assert PRODUCT_HABIT.search(text), text
    for text in ("whatever it is", "memory is given back", "as Spark has it", "Gives back the bytes"):
        assert PRODUCT_HABIT.search(text), text
    for text in ("there is no record", "it is no longer there", "a way of its own", "given: back to back"):
        assert not PRODUCT_HABIT.search(text), text
    for text in (
        '"""What is read."""',
        'r"""Where a line ends."""',
        '"""Which rows."""',
        '"""And so on."""',
        '"""See ``X``."""',
    ):
        assert OPENING.search(text), text
    assert not OPENING.search('"""Whether it is read."""')
    module = tmp_path / "module.py"
    module.write_text('"""One."""\nx = 1  # two\ny = "three"\n')
    assert list(prose_in(module)) == [(2, "x = 1  # two"), (1, '"""One."""')]
    tree = ast.parse('"""It is no text."""\nraise ValueError(f"{1} is no text")')
    assert list(texts_in(tree)) == [(2, " is no text")]
    assert IS_NO.search(" is no text")
    assert not IS_NO.search("there is no text, and it is no longer wanted")


# Variables of these rooms have the noun that they stand for.
NAMED_ROOMS = ("lance", "source/formats", "testing")
GENERIC = {"found", "one", "known", "made", "told", "given", "most"}


def generic_names_in(source: str) -> Iterator[tuple[int, str]]:
    """The local variables and parameters of a module that are called by a generic word, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store) and inner.id in GENERIC:
                    yield inner.lineno, inner.id
                elif isinstance(inner, ast.arg) and inner.arg in GENERIC:
                    yield inner.lineno, inner.arg


def test_variables_are_nouns() -> None:
    """A variable is called ``entry`` or ``position``, and not ``one`` or ``found``."""
    generic = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for room in NAMED_ROOMS
        for path in python_files(PACKAGE / room)
        for line, name in generic_names_in(path.read_text("utf-8"))
    ]
    assert generic == []
    assert sorted(generic_names_in("def f(known):\n    found = [one for one in known]\n    return found\n")) == [
        (1, "known"),
        (2, "found"),
        (2, "one"),
    ]
    assert list(generic_names_in("class Wanted:\n    known: int = 0\n")) == []
