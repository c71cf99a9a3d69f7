"""botocore and aiobotocore are used by their public interface alone: nothing in them is overridden or replaced."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository.source_tree import PACKAGE, ROOT, parse, python_files

LIBRARIES = ("botocore", "aiobotocore")
# Methods that put something of ours into a client, or take something of theirs out of it.
HOOKS = ("register", "unregister", "emit")
THREADS_OF_OTHERS = re.compile(r"\bto_thread\(|ThreadPoolExecutor\(|run_in_executor\(None")


def users_of_libraries() -> list[Path]:
    """The modules whose text has the name of a library: the others need not be parsed."""
    return [path for path in python_files(PACKAGE) if "botocore" in path.read_text("utf-8")]


def names_from_libraries(tree: ast.Module) -> set[str]:
    """The names under which a module knows the libraries and what is in them."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES:
            names |= {one.asname or one.name for one in node.names}
        elif isinstance(node, ast.Import):
            found = [one for one in node.names if one.name.partition(".")[0] in LIBRARIES]
            names |= {one.asname or one.name.partition(".")[0] for one in found}
    return names


def root_of(node: ast.expr) -> str:
    """The name that an expression with dots begins with."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def meddlings(tree: ast.Module) -> Iterator[str]:
    """What a module overrides, replaces, registers, or takes by a private name."""
    names = names_from_libraries(tree)
    if not names:
        return
    yield from (f"{name} is private" for name in sorted(names) if name.startswith("_"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(root_of(base) in names for base in node.bases):
            yield f"{node.name} derives from one of theirs"
        elif isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if node.attr.startswith("_") and not node.attr.startswith("__") and not is_own:
                yield f"{node.attr} is private"
            if any(node.attr.startswith(hook) for hook in HOOKS):
                yield f"{node.attr} changes a client"
            if isinstance(node.ctx, ast.Store) and root_of(node) in names:
                yield f"{node.attr} of theirs is replaced"
        elif isinstance(node, ast.Call) and root_of(node.func) in ("setattr", "delattr"):
            yield "an attribute is replaced"


def test_blocking_calls_are_made_on_threads_of_ours() -> None:
    """Others may have taken those of the loop, and those of ``concurrent.futures`` keep a program from ending."""
    # Programs of their own; and the threads that a loop has for other libraries.
    own = {PACKAGE / "cli", PACKAGE / "testing", PACKAGE / "sync" / "loop_thread.py"}
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in python_files(PACKAGE)
        if own.isdisjoint((path, *path.parents))
        for match in THREADS_OF_OTHERS.finditer(path.read_text("utf-8"))
    ]
    assert found == []


def test_nothing_of_botocore_is_overridden() -> None:
    found = [f"{path.relative_to(ROOT)}: {what}" for path in users_of_libraries() for what in meddlings(parse(path))]
    assert found == []


def test_there_are_modules_to_look_at() -> None:
    users = {path.name for path in users_of_libraries() if names_from_libraries(parse(path))}
    assert users >= {"signed_targets.py", "key_source.py"}


@pytest.mark.parametrize(
    "source",
    [
        "from aiobotocore.httpsession import AIOHTTPSession\nclass Direct(AIOHTTPSession): ...",
        "import botocore.auth\nclass Mine(botocore.auth.SigV4Auth): ...",
        "from botocore.handlers import _handle_200_error",
        "import botocore\ndef f(client):\n    client.meta.events.unregister('a', 1)",
        "import botocore\ndef f(session):\n    session.register_component('a', 1)",
        "import botocore.auth\nbotocore.auth.HMAC = 1",
        "import botocore\ndef f(client):\n    return client._endpoint",
        "import botocore\ndef f(client):\n    setattr(client, 'a', 1)",
    ],
)
def test_the_check_bites(source: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert [*meddlings(parse(path))]
