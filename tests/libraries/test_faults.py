"""What we make of the faults that the page has beside other libraries."""

import pytest

from tests.libraries.faults import CASES, PAGE, Case, outcome


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
async def test_our_column(case: Case) -> None:
    found, happened = await outcome(case, "aioprefetch")
    assert happened
    assert found == ("error" if case.is_always or case.fault == "overwritten" else "exact")
    assert f"| {case.says} | {case.job} | {found} |" in PAGE.read_text("utf-8")
