"""Both suites over services of other authors: that of the guide, as the page has it, and one that lists and writes."""

import ast
import sys
from types import ModuleType
from typing import Any

import pytest

from aioprefetch.testing.accessor_suite import AccessorSuite
from aioprefetch.testing.reader_suite import ReaderSuite
from tests.profile import few
from tests.repository.doc_pages import blocks_of
from tests.repository.source_tree import ROOT
from tests.stores.dict_store import NEEDED, OPTIONAL, DictStore
from tests.stores.stacks import EachStack

GUIDE = ROOT / "docs" / "guides" / "service.md"


def guide_module() -> ModuleType:
    """The service of the guide as a module: the first block of the page, without its use at the end."""
    tree = ast.parse(blocks_of(GUIDE)[0].content)
    tree.body = [node for node in tree.body if not isinstance(node, ast.AsyncWith)]
    module = ModuleType("service_of_the_guide")
    sys.modules[module.__name__] = module  # Where pickles look for it.
    exec(compile(tree, str(GUIDE), "exec"), vars(module))
    return module


class OnGuide(EachStack):
    """The texts of the guide's service."""

    @pytest.fixture
    def service(self) -> Any:
        """The recipe, of a module that has no texts yet."""
        module = guide_module()
        self.texts: dict[str, bytes] = module.TEXTS
        self.texts.clear()
        return module.Toy(name="poems")

    async def put_directly(self, path: str, data: bytes) -> None:
        """Into the dict."""
        self.texts[path] = data

    async def get_directly(self, path: str) -> bytes | None:
        """Out of the dict."""
        return self.texts.get(path)


class TestAccessorOfTheGuide(OnGuide, AccessorSuite):
    """Operations."""


class TestReaderOfTheGuide(OnGuide, ReaderSuite):
    """Readers."""


class OnDict(EachStack):
    """A dictionary that lists and writes, and has no times: what else it has differs."""

    @pytest.fixture(params=few(["all", "needed", "size alone"]))
    def service(self, request: pytest.FixtureRequest) -> DictStore:
        """An empty store."""
        self.store = {
            "needed": DictStore(),
            "size alone": DictStore(tells_etag=False),
            "all": DictStore(can=NEEDED | OPTIONAL, recursive=True),
        }[request.param]
        return self.store

    async def put_directly(self, path: str, data: bytes) -> None:
        """Into the dict."""
        self.store.objects[path] = data

    async def get_directly(self, path: str) -> bytes | None:
        """Out of the dict."""
        return self.store.objects.get(path)


class TestAccessorOfADict(OnDict, AccessorSuite):
    """Operations."""


class TestReaderOfADict(OnDict, ReaderSuite):
    """Readers."""
