"""The page of faults names the tests that are marked as theirs."""

from aioprefetch.testing.conformance.suite import RELIABILITY_IDS
from tests.repository.reliability_page import PAGE, marked_tests, page_text, rows


def test_the_page_names_the_marked_tests() -> None:
    """``python -m tests.repository.reliability_page`` writes it."""
    assert PAGE.read_text("utf-8") == page_text()


def test_each_row_has_a_promise_and_a_test() -> None:
    assert sorted(rows()) == sorted(RELIABILITY_IDS)
    assert set(rows()) - marked_tests().keys() == set()
