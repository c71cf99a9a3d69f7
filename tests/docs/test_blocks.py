"""Every Python block of the documentation runs; what is printed below it is what it prints."""

import ast
import asyncio
import contextlib
import inspect
import io
from pathlib import Path
from typing import Any

import pytest

from tests.repository.doc_pages import NO_RUN, PAGES, Block, blocks_of
from tests.repository.source_tree import ROOT

INFOS = {"python", "python no-run", "text", "sh", "sql", "toml", "json", ""}
WITH_PYTHON = [page for page in PAGES if any(block.info == "python" for block in blocks_of(page))]


def run_block(block: Block, names: dict[str, Any], runner: asyncio.Runner) -> str:
    """Run a block, with ``await`` allowed at its top; what it printed."""
    source = "\n" * (block.line - 1) + block.content  # So that a traceback shows the line of the page.
    compiled = compile(source, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if compiled.co_flags & inspect.CO_COROUTINE:
            runner.run(_evaluate(compiled, names))
        else:
            exec(compiled, names)
    return printed.getvalue().strip()


async def _evaluate(compiled: Any, names: dict[str, Any]) -> None:
    await eval(compiled, names)


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page share their names, in order, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page.stem}
    with asyncio.Runner() as runner:
        for block in blocks_of(page):
            if block.info != "python":
                continue
            printed = run_block(block, names, runner)
            if block.printed is not None:
                assert printed == block.printed.strip(), block.where


def test_blocks_say_what_they_are() -> None:
    """A block has a known language, parses, and gives a reason where it is not run."""
    for block in (block for page in PAGES for block in blocks_of(page)):
        assert block.info in INFOS, f"{block.where}: {block.info!r}"
        if block.info.startswith("python"):
            compile(block.content, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if block.info == "python no-run":
            assert block.content.startswith(NO_RUN), f"{block.where} does not begin with {NO_RUN!r} and a reason"


def test_a_wrong_output_is_noticed(tmp_path: Path) -> None:
    """The check of what is printed bites."""
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    (block, _) = blocks_of(page)
    assert block.printed == "3"
    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.repository.doc_pages.ROOT", tmp_path)
        assert run_block(block, {}, runner) == "2"
