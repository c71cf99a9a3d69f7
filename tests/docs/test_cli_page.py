"""The page of the command line is the help of its commands."""

from tests.docs.cli_page import PAGE, page_text


def test_the_page_is_the_help() -> None:
    """``python -m tests.docs.cli_page`` writes it."""
    assert PAGE.read_text("utf-8") == page_text()
