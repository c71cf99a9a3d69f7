"""Every test here names the rows of the catalogue of faults that it is for, in its `@checks` mark.

That every row has a test, or a reason why it has none, is asserted with the other ids in `tests/conformance`.
"""

import ast

from tests.repository.source_tree import ROOT, parse, python_files

# Their faults are not of servers but of processes and of a caller's first day, or have their rows elsewhere.
WITHOUT_ROWS = (
    "test_every_row.py",
    "test_first_mistakes.py",
    "test_process.py",
    "test_request_events.py",
    "test_weak_rows.py",
)


def names_a_row(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a decorator of a test has an id such as `reliability:S09`."""
    constants = (node for mark in test.decorator_list for node in ast.walk(mark) if isinstance(node, ast.Constant))
    return any(isinstance(one.value, str) and one.value.startswith("reliability:") for one in constants)


def test_every_test_of_the_folder_names_its_row() -> None:
    """A fault without a row would not be found again."""
    unnamed = [
        node.name
        for path in python_files(ROOT / "tests" / "reliability")
        if path.name not in WITHOUT_ROWS
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not names_a_row(node)
    ]
    assert unnamed == []
