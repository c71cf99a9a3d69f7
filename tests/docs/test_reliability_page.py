"""The page of faults names the tests that are marked as theirs."""

from aioprefetch.testing.conformance.suite import checks
from tests.repository.checked_lines import RELIABILITY_IDS
from tests.repository.reliability_page import PAGE, marked_tests, page_text, rows


def test_the_page_names_the_marked_tests() -> None:
    """``python -m tests.repository.reliability_page`` writes it."""
    assert PAGE.read_text("utf-8") == page_text()


def test_each_row_has_a_promise_and_a_test() -> None:
    assert sorted(rows()) == sorted(RELIABILITY_IDS)
    assert set(rows()) - marked_tests().keys() == set()


@checks("reliability:K32")
def test_the_threat_model_names_who_is_trusted() -> None:
    text = (PAGE.parent / "threat-model.md").read_text("utf-8")
    trusted, rest = text.split("## Not trusted", 1)
    assert all(word in trusted for word in ("configure the operator", "cache's store", "certificate authorities"))
    strangers = ("a store or server", "a key from a user", "another user of this machine", "a writer of the object")
    assert all(f"| {who} |" in rest for who in strangers)
