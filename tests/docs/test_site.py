"""The documentation site has every page and every public name; `make docs` builds it, and checks its links."""

import ast
import inspect
import re
import tomllib
from typing import Any

import aioprefetch as ap
from tests.benches.doc_pages import PAGES
from tests.benches.source_tree import PACKAGE, ROOT, python_files, statements

SITE = ROOT / "docs" / "site"
CONFIGURATION = (SITE / "mkdocs.yml").read_text("utf-8")


def constant(name: str) -> Any:
    """A constant of the module that makes the pages of names, which needs mkdocs to be imported."""
    tree = ast.parse((SITE / "pages.py").read_text("utf-8"))
    assigned = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    return ast.literal_eval(assigned[name])


def test_every_page_is_in_the_navigation_once() -> None:
    """The decisions come by themselves."""
    listed = re.findall(r"[\w/.-]+\.md", CONFIGURATION.partition("\nnav:\n")[2])
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert sorted(listed) == sorted(page for page in pages if not page.startswith("decisions/"))


def test_every_public_name_has_a_page() -> None:
    """Rooms and classes; ``testing`` is in its guide."""
    rooms = {name for name in dir(ap) if inspect.ismodule(getattr(ap, name)) and not name.startswith("_")}
    assert rooms - {"testing", "errors"} == set(constant("ROOMS"))
    named = {*constant("CLASSES"), *constant("VALUES"), *constant("FUNCTIONS"), *constant("PROTOCOLS")}
    assert {name for name in ap.__all__ if name not in ap.errors.__all__} - rooms == named - {"sync.BlockingOperator"}


def parameters_of(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The names that the documentation of a function or a class may explain; all of them for a class with a base."""
    if isinstance(node, ast.ClassDef):
        fields = {ast.unparse(item.target) for item in node.body if isinstance(item, ast.AnnAssign)}
        makers = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
        return fields.union(*map(parameters_of, makers))
    every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
    return {argument.arg for argument in every if argument is not None}


def test_what_is_documented_as_a_parameter_is_one() -> None:
    """The site shows what follows a list of parameters as more of them, and of two in one heading the first alone."""
    wrong = []
    for path in python_files(PACKAGE):
        for node in statements(path):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            _, _, listed = (ast.get_docstring(node) or "").partition("Parameters\n----------\n")
            names = [line for line in listed.splitlines() if line and not line.startswith(" ")]
            known = set(names) if isinstance(node, ast.ClassDef) and node.bases else parameters_of(node)
            wrong += [(str(path), node.name, name) for name in names if name not in known or not name.isidentifier()]
    assert wrong == []


def test_its_addresses_are_those_of_the_package() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    assert re.findall(r"^(?:site|repo)_url: (.+)$", CONFIGURATION, re.MULTILINE) == [
        urls["Documentation"],
        urls["Source"],
    ]
