"""Short functions and modules, docstrings, honest names, no sleeping tests, no paths of one machine."""

import ast
import re
from pathlib import Path

from tests.profile import IS_FULL
from tests.repository.source_tree import PACKAGE, ROOT, parse, project_files, python_files, statements

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 600
NAMELESS = {"utils", "util", "helpers", "common", "core", "misc"}
# Folders whose classes are parts by design: users of the conformance suites may take single parts of them.
MIX_INS = {"aioprefetch/testing/conformance"}
MACHINE_PATH = re.compile(rb"(?<![\w.:/*}])/(?:work|root)/")

PACKAGE_FILES = python_files(PACKAGE)
TEST_FILES = python_files(ROOT / "tests")
ALL_FILES = PACKAGE_FILES + TEST_FILES

Function = ast.FunctionDef | ast.AsyncFunctionDef
DOCSTRING = re.compile(r'(?:#.*\n)*r?"""\S')


def name_of(path: Path, line: int) -> str:
    """File and line, for messages."""
    return f"{path.relative_to(ROOT)}:{line}"


def lines_of(function: Function) -> int:
    """Lines of a function, without decorators and docstring."""
    first, docstring = function.body[0], ast.get_docstring(function, clean=False)
    docstring_lines = (first.end_lineno or 0) - first.lineno + 1 if docstring is not None else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring_lines


def base_names(node: ast.ClassDef) -> set[str]:
    """The names of the bases of a class, without modules and type arguments."""
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return {getattr(base, "attr", getattr(base, "id", "")) for base in bases}


def divided_classes(trees: dict[str, list[ast.AST]]) -> list[str]:
    """Bases with one subclass, which stands in another module of the same room, and without a use in a third module.

    ``trees`` are the statements of each module by its path below the project.
    """
    homes: dict[str, list[str]] = {}
    subclasses: dict[str, list[tuple[str, str]]] = {}
    importers: dict[str, set[str]] = {}
    for path, nodes in trees.items():
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path)
                for name in base_names(node):
                    subclasses.setdefault(name, []).append((node.name, path))
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    importers.setdefault(alias.name, set()).add(path)
    return [
        f"{home} {name}: {subclasses[name][0][0]}"
        for name, paths in homes.items()
        for home in paths
        if len(subclasses.get(name, ())) == 1
        and (other := subclasses[name][0][1]) != home
        and other.split("/")[1] == home.split("/")[1]
        and not importers.get(name, set()) - {home, other}
        and home.rpartition("/")[0] not in MIX_INS
    ]


def is_real_sleep(node: ast.AST) -> bool:
    """Whether a node calls something named sleep with a positive number written out."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    value = getattr(node.args[0], "value", None)
    return name == "sleep" and isinstance(value, int | float) and value > 0


def test_functions_are_short() -> None:
    """A function fits on a screen. Those of tests are looked at in CI: to parse them takes seconds."""
    paths = ALL_FILES if IS_FULL else PACKAGE_FILES
    functions = [(path, node) for path in paths for node in statements(path) if isinstance(node, Function)]
    long = [
        f"{name_of(path, node.lineno)} {node.name}: {lines_of(node)}"
        for path, node in functions
        if lines_of(node) > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_modules_are_short() -> None:
    """A module has one subject; one class is not cut in two to stay short."""
    sizes = {path: len(path.read_text("utf-8").splitlines()) for path in ALL_FILES}
    assert [f"{name_of(path, size)}" for path, size in sizes.items() if size > MODULE_LINES_MAX] == []


def test_no_class_is_cut_in_two() -> None:
    """A base that serves one subclass alone, in another module, is a part of that class."""
    trees = {path.relative_to(ROOT).as_posix(): statements(path) for path in PACKAGE_FILES}
    assert divided_classes(trees) == []


def test_modules_say_what_they_are_for() -> None:
    """Each has a docstring and a name that means something."""
    assert [name_of(path, 1) for path in ALL_FILES if not DOCSTRING.match(path.read_text("utf-8"))] == []
    assert [name_of(path, 1) for path in PACKAGE_FILES if NAMELESS & {path.stem, path.parent.name}] == []


def test_tests_do_not_sleep() -> None:
    """Wait for an event, or use the virtual clock."""
    sleeping = [
        name_of(path, node.lineno)
        for path in TEST_FILES
        if "sleep(" in path.read_text("utf-8") and path.name != "soak.py"  # Its samples are of real seconds.
        for node in ast.walk(parse(path))
        if is_real_sleep(node) and isinstance(node, ast.Call)
    ]
    assert sleeping == []


def test_no_paths_of_one_machine() -> None:
    """What is tracked works wherever it is checked out."""
    found = [
        name_of(path, number)
        for path in project_files()
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert found == []


def test_the_checks_bite() -> None:
    """They refuse what they are there to refuse."""
    (call,) = (node for node in ast.walk(ast.parse("asyncio.sleep(0.1)")) if isinstance(node, ast.Call))
    assert is_real_sleep(call)
    assert not is_real_sleep(ast.parse("asyncio.sleep(0)").body[0])
    half, whole = ast.parse("class Half: ..."), ast.parse("from x import Half\nclass Whole(Half[int]): ...")
    trees: dict[str, list[ast.AST]] = {"p/room/half.py": [*half.body], "p/room/whole.py": [*whole.body]}
    assert divided_classes(trees) == ["p/room/half.py Half: Whole"]
    assert divided_classes({**trees, "p/room/third.py": [*ast.parse("from x import Half").body]}) == []
    assert divided_classes({**trees, "p/room/second.py": [*whole.body]}) == []
    assert MACHINE_PATH.search(b"cd /" + b"work/main")
    assert not MACHINE_PATH.search(b"/srv/network/x tests/root/y")
    body = "\n".join(["def f():", '    """One.', "    Two.", '    """', "    return 1"])
    (function,) = ast.parse(body).body
    assert isinstance(function, Function)
    assert lines_of(function) == 2
