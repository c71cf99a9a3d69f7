"""Every row of the catalogue of faults at the wire, S01 to S70, has a test here or a reason why it has none."""

import ast
import re

from tests.tidy.source_tree import ROOT, parse, python_files

FOLDER = ROOT / "tests" / "reliability"
ROWS = frozenset(f"S{number:02}" for number in range(1, 71))

NOT_APPLICABLE = {
    "S39": "no request is ever sent twice at the same time to win against a slow one: there is no hedging",
    "S40": "without hedging there are no two answers to one request that could disagree",
}


def rows_with_tests() -> dict[str, list[str]]:
    """The tests of each row, by their names: ``test_s09_s11_a_new_connection_breaks``."""
    found: dict[str, list[str]] = {}
    for path in python_files(FOLDER):
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            named = re.match(r"test((?:_s\d\d)+)_", node.name)
            for row in re.findall(r"s\d\d", named[1]) if named else ():
                found.setdefault(row.upper(), []).append(node.name)
    return found


def test_every_row_is_tested_or_explained() -> None:
    """None is forgotten, none is both, and no name speaks of a row that does not exist."""
    tested = rows_with_tests().keys()
    assert sorted(ROWS - tested - NOT_APPLICABLE.keys()) == []
    assert sorted(tested & NOT_APPLICABLE.keys()) == []
    assert sorted(tested - ROWS) == []


def test_every_test_of_the_folder_names_its_row() -> None:
    """A fault without a row would not be found again."""
    named = {name for names in rows_with_tests().values() for name in names}
    tests = {
        node.name
        for path in python_files(FOLDER)
        if path.name not in ("test_every_row.py", "test_process.py")  # The rows are of what servers do.
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    assert sorted(tests - named) == []


def test_reasons_are_sentences() -> None:
    """A reason says more than that there is none."""
    assert NOT_APPLICABLE.keys() <= ROWS
    assert [row for row, reason in NOT_APPLICABLE.items() if len(reason) < 40] == []
