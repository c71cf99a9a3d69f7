"""No frame holds an error that it has raised or caught: the traceback of the error holds the frame.

Such a cycle lives until the garbage collector runs, with all that the frame refers to, and on Python 3.12 and 3.13 with
the frames of all callers.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from tests.repository.source_tree import PACKAGE, ROOT, parse, python_files

Function = ast.FunctionDef | ast.AsyncFunctionDef
INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
SAME_ERROR = {"add_context", "with_traceback"}  # Methods that return the error itself.
FILES = [path for path in python_files(PACKAGE) if path.relative_to(PACKAGE).parts[0] != "testing"]


@dataclass(frozen=True)
class Scope:
    """The locals of a function, those of them that are gone when it is left, and the names of caught errors."""

    names: frozenset[str]
    dropped: frozenset[str] = field(default=frozenset())
    caught: frozenset[str] = field(default=frozenset())

    def without(self, names: set[str]) -> "Scope":
        return replace(self, dropped=self.dropped | names)

    def catching(self, name: str | None) -> "Scope":
        """Within a handler, whose name Python deletes at its end."""
        names = {name} if name else set()
        return replace(self, dropped=self.dropped | names, caught=self.caught | names)


def locals_of(function: Function) -> frozenset[str]:
    arguments = function.args
    given = {one.arg for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
    stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return frozenset((given | stored) - {"self", "cls"})


def raised_name(node: ast.Raise) -> str | None:
    error = node.exc
    while isinstance(error, ast.Call) and isinstance(error.func, ast.Attribute) and error.func.attr in SAME_ERROR:
        error = error.func.value
    if isinstance(error, ast.BoolOp):
        error = error.values[0]
    return error.id if isinstance(error, ast.Name) else None


def deleted_in(statements: list[ast.stmt]) -> set[str]:
    nodes = [node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Delete)]
    return {target.id for node in nodes for target in node.targets if isinstance(target, ast.Name)}


def caught_in(value: ast.expr) -> set[str]:
    """The names that an assigned value may be itself."""
    values = value.values if isinstance(value, ast.BoolOp) else value.elts if isinstance(value, ast.Tuple) else [value]
    return {one.id for one in values if isinstance(one, ast.Name)}


def kept_errors(node: ast.AST, scope: Scope) -> Iterator[tuple[int, str]]:
    """Line and name of each raised local, and of each target that keeps a caught error, unless it is deleted."""
    if isinstance(node, ast.Raise):
        name = raised_name(node)
        if name in scope.names and name not in scope.dropped:
            yield node.lineno, str(name)
    elif isinstance(node, ast.Assign) and scope.caught & caught_in(node.value):
        kept = [ast.unparse(target) for target in node.targets]
        yield from ((node.lineno, name) for name in kept if name not in scope.dropped)
    elif isinstance(node, ast.Try):
        inside = scope.without(deleted_in(node.finalbody))
        for statement in [*node.body, *node.orelse]:
            yield from kept_errors(statement, inside)
        for handler in node.handlers:
            for statement in handler.body:
                yield from kept_errors(statement, inside.catching(handler.name))
        for statement in node.finalbody:
            yield from kept_errors(statement, scope)
    elif not isinstance(node, INNER):
        for child in ast.iter_child_nodes(node):
            yield from kept_errors(child, scope)


def kept_in(tree: ast.AST) -> list[tuple[int, str]]:
    return [
        found
        for function in ast.walk(tree)
        if isinstance(function, Function)
        for statement in function.body
        for found in kept_errors(statement, Scope(locals_of(function)))
    ]


def test_no_frame_holds_its_own_error() -> None:
    kept = [f"{path.relative_to(ROOT)}:{line} {name}" for path in FILES for line, name in kept_in(parse(path))]
    assert not kept, "raise it from an expression, keep a copy_of it, or delete it in a finally: " + ", ".join(kept)


@pytest.mark.parametrize(
    "body",
    [
        "error = ValueError()\n    raise error",
        "error = ValueError()\n    raise error.with_traceback(None) from None",
        "error = None\n    raise error or StopIteration",
        "try:\n        g()\n    except ValueError as caught:\n        error = caught",
        "try:\n        g()\n    except ValueError as caught:\n        error = None or caught",
    ],
)
def test_a_kept_error_is_found(body: str) -> None:
    assert [name for _, name in kept_in(ast.parse(f"def f():\n    {body}"))] == ["error"]


@pytest.mark.parametrize(
    "body",
    [
        "raise ValueError",
        "try:\n        g()\n    except ValueError as error:\n        raise error from None",
        "error = ValueError()\n    try:\n        raise error\n    finally:\n        del error",
        "error = ValueError()\n    raise copy_of(error)",
        "try:\n        g()\n    except ValueError as error:\n        self.error = copy_of(error)",
    ],
)
def test_an_error_that_no_local_holds_is_none(body: str) -> None:
    assert kept_in(ast.parse(f"def f():\n    {body}")) == []
