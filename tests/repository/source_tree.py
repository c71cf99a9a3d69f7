"""What the tidy tests read: the source files and the imports in them."""

import ast
import gc
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "aioprefetch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module: by which file, at which line, whether inside a function, whether for type checkers alone."""

    module: str
    path: Path
    line: int
    in_function: bool
    for_typing: bool = False

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def python_files(folder: Path) -> list[Path]:
    """All Python files under a folder, sorted; none when it does not exist."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a file, without the collector: it takes twice as long as the parser, and finds nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text("utf-8"), str(path))
    finally:
        if was_enabled:
            gc.enable()


@cache
def statements(path: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree that are not expressions: most are, and none of them holds a statement."""
    found: list[ast.AST] = [parse(path)]
    for node in found:
        found.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))
    return found


def forget_trees() -> None:
    """Drop the trees of all files."""
    parse.cache_clear()
    statements.cache_clear()


@cache
def project_files() -> list[Path]:
    """Files that are or would be tracked by git; everything but hidden folders where there is no git."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        names = listing.stdout.decode().split("\0")
        paths = [ROOT / name for name in names if name]
    else:
        paths = [path for path in ROOT.rglob("*") if not any(part[0] == "." for part in path.relative_to(ROOT).parts)]
    return sorted(path for path in paths if path.is_file())


def imports_of(path: Path) -> list[Import]:
    """The modules a file imports when it runs."""
    return [found for found in all_imports_of(path) if not found.for_typing]


@cache
def all_imports_of(path: Path) -> list[Import]:
    """The modules a file imports, under TYPE_CHECKING too."""
    return list(_walk(parse(path), path, in_function=False, for_typing=False))


def _walk(node: ast.AST, path: Path, *, in_function: bool, for_typing: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            typed = ast.Module(body=child.body, type_ignores=[])
            yield from _walk(typed, path, in_function=in_function, for_typing=True)
            otherwise = ast.Module(body=child.orelse, type_ignores=[])
            yield from _walk(otherwise, path, in_function=in_function, for_typing=for_typing)
        elif isinstance(child, ast.Import | ast.ImportFrom):
            for module in _modules(child):
                yield Import(
                    module=module, path=path, line=child.lineno, in_function=in_function, for_typing=for_typing
                )
        elif not isinstance(child, ast.expr):
            inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _walk(child, path, in_function=inside, for_typing=for_typing)


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = "." * node.level + (node.module or "")
    # `from aioprefetch import errors` means the submodule; a name that is no module means the package.
    return [f"{base}.{alias.name}" if _is_module(f"{base}.{alias.name}") else base for alias in node.names]


def _is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return name.startswith("aioprefetch.") and (path.is_dir() or path.with_suffix(".py").is_file())


def file_of(module: str) -> Path | None:
    """The file of a module of the package, ``None`` for any other."""
    path = ROOT / module.replace(".", "/")
    if module.partition(".")[0] != "aioprefetch":
        return None
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
