"""The documentation site has every page and every public name; `make docs` builds it, and checks its links."""

import ast
import importlib.util
import inspect
import re
import tomllib
from typing import Any

import pytest
import yaml

import aioprefetch as ap
from tests.repository.doc_pages import PAGES
from tests.repository.source_tree import PACKAGE, ROOT, python_files, statements

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


def test_a_door_has_at_most_eight_pages() -> None:
    """The home page and the navigation have the same four doors, with the same pages behind each."""
    navigation = yaml.load(CONFIGURATION.partition("\nnav:\n")[2], yaml.BaseLoader)
    doors = {title: pages for entry in navigation[1:5] for title, pages in entry.items()}
    home = (ROOT / "docs" / "index.md").read_text("utf-8")
    cards = home.partition("## Where to start\n")[2].partition("</div>")[0].split("\n* ")[1:]
    for (title, pages), card in zip(doors.items(), cards, strict=True):
        behind = [page if isinstance(page, str) else next(iter(page.values())) for page in pages]
        assert card.startswith(f"**{title}**")
        assert set(re.findall(r"\(([\w/.-]+\.md)\)", card)) == set(behind)
        assert len(behind) <= 8


def test_every_verb_has_a_page() -> None:
    """What it promises, what a failure leaves, an example; the site adds the signature."""
    verbs = {name for name, member in vars(ap.Operator).items() if inspect.isfunction(member) and name[0] != "_"}
    verbs -= {"layer", "runtime", "accessor", "aclose"}.union(*constant("BESIDE").values())
    assert {page.stem for page in (ROOT / "docs" / "verbs").glob("*.md")} == verbs
    for verb in verbs:
        text = (ROOT / "docs" / "verbs" / f"{verb}.md").read_text("utf-8")
        assert text.startswith(f"# op.{verb}\n")
        assert text.count("**Promise.**") == text.count("**When it fails.**") == text.count("```python\n") == 1


def test_every_concept_has_a_figure() -> None:
    """It is drawn in the colour of the text, and follows light and dark where it is shown as a picture."""
    for page in (ROOT / "docs" / "concepts").glob("*.md"):
        assert f"](figures/{page.stem}.svg)" in page.read_text("utf-8")
        drawing = (page.parent / "figures" / f"{page.stem}.svg").read_text("utf-8")
        assert {"currentColor", "prefers-color-scheme: dark"} <= set(
            re.findall(r"currentColor|prefers-[\w: -]+", drawing)
        )


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
    for path in (path for path in python_files(PACKAGE) if "Parameters\n" in path.read_text("utf-8")):
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


def test_pages_of_names_lead_on() -> None:
    """To pages that there are; each class and room leads somewhere."""
    leads = constant("NEXT")
    assert [target for target in leads.values() if not (ROOT / "docs" / target).exists()] == []
    first_words = {name.partition(".")[0] for name in leads}
    assert {name.partition(".")[0] for name in (*constant("CLASSES"), *constant("ROOMS"))} <= first_words


@pytest.mark.full
def test_options_of_a_call_are_on_its_page() -> None:
    """Those of the bases of a ``TypedDict`` too, with their meaning; griffe comes with what builds the site."""
    griffe = pytest.importorskip("griffe")
    spec = importlib.util.spec_from_file_location("typed_options", SITE / "typed_options.py")
    assert spec is not None
    assert spec.loader is not None
    typed_options = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(typed_options)
    package = griffe.load(
        "aioprefetch",
        search_paths=[ROOT],
        docstring_parser="numpy",
        extensions=griffe.load_extensions(typed_options.TypedOptions),
    )
    read = package["operator.operator.Operator.read"]
    assert {"if_match", "version", "timeout_seconds"} <= {parameter.name for parameter in read.parameters}
    for path in ("operator.operator.Operator.from_uri", "operator.operator.Operator.reader", "sync.opening.open"):
        rows = {row.name: row.description for row in typed_options.described(package[path])}
        assert {"block_bytes", "prefetch_blocks"} <= rows.keys(), path
        assert "" not in rows.values(), path
