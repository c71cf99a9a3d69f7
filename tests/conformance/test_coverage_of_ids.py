"""Every line of both conformance lists is checked by a test, or listed with the reason why it does not apply."""

import re

import pytest

from aioprefetch.testing.accessor_suite import AccessorSuite
from aioprefetch.testing.conformance.suite import CHECKED, ConformanceSuite
from aioprefetch.testing.reader_suite import ReaderSuite
from tests.repository.checked_lines import ALL_IDS, NOT_APPLICABLE
from tests.repository.reliability_page import marked_tests
from tests.repository.source_tree import ROOT

DOCUMENT = ROOT / "docs" / "reference" / "conformance.md"


def ids_in_suites() -> set[str]:
    """The ids of the tests that the two suites hold."""
    held = {
        f"{test.__module__}.{test.__qualname__}"
        for suite in (AccessorSuite, ReaderSuite)
        for name in dir(suite)
        if name.startswith("test_")
        for test in [getattr(suite, name)]
    }
    return {one for one, tests in CHECKED.items() if tests & held}


def test_every_id_is_checked_or_explained() -> None:
    """No line of the lists is forgotten."""
    checked = ids_in_suites() | marked_tests().keys()
    assert sorted(ALL_IDS - checked - NOT_APPLICABLE.keys()) == []
    assert sorted(checked - ALL_IDS) == []
    assert sorted(checked & NOT_APPLICABLE.keys()) == []


def test_every_test_of_the_suites_checks_something() -> None:
    """A test without an id would not be missed if it went."""
    marked = {name for tests in CHECKED.values() for name in tests}
    for suite in (AccessorSuite, ReaderSuite):
        tests = [getattr(suite, name) for name in dir(suite) if name.startswith("test_")]
        assert [test.__qualname__ for test in tests if f"{test.__module__}.{test.__qualname__}" not in marked] == []


def test_reasons_are_sentences() -> None:
    """A reason says more than that there is none."""
    assert NOT_APPLICABLE.keys() <= ALL_IDS
    assert [one for one, reason in NOT_APPLICABLE.items() if len(reason) < 40] == []


def test_the_document_lists_what_does_not_apply() -> None:
    """docs/reference/conformance.md holds exactly the table in the code."""
    rows = re.findall(r"^\| `(\w+:\w+)` \| (.+?) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert dict(rows) == NOT_APPLICABLE
    assert len(rows) == len(NOT_APPLICABLE)


def test_two_tests_of_one_name_are_refused() -> None:
    """When suites are put together, no test may hide another."""

    class First(ConformanceSuite):
        async def test_same(self) -> None:
            """One."""

    class Second(ConformanceSuite):
        async def test_same(self) -> None:
            """Two."""

    with pytest.raises(TypeError, match="test_same"):
        type("Both", (First, Second), {})
