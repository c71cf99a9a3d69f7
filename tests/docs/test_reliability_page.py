"""The page of faults is made from the catalogue and the marks of the tests."""

from aioprefetch.testing.conformance.suite import RELIABILITY_IDS
from tests.repository.reliability_page import FAMILIES, PAGE, marked_tests, page_text


def test_the_page_is_what_the_marks_say() -> None:
    """``python -m tests.repository.reliability_page`` writes it."""
    assert PAGE.read_text("utf-8") == page_text()


def test_each_row_has_a_promise_and_a_test() -> None:
    rows = [f"reliability:{row}" for _, family in FAMILIES.values() for row in family]
    assert sorted(rows) == sorted(RELIABILITY_IDS)
    assert set(rows) - marked_tests().keys() == set()
