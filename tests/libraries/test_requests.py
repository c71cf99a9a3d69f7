"""Files by URL: the same results with no more requests than with any other library; the pages say what was counted."""

import re
from typing import Any

import pytest

from tests.libraries.requests.cost import Costs, is_ours
from tests.libraries.requests.large_files import SECTION as FILES
from tests.libraries.requests.page import NOT_COUNTED, PAGE, README
from tests.libraries.requests.run import counted
from tests.profile import chosen
from tests.repository.doc_pages import rows_under

NAMES = chosen(quick=["zip_member", "parquet_columns", "png"], full=list(FILES.jobs))


@pytest.fixture(scope="module")
def costs() -> Costs:
    """The costs that a process has counted, for all jobs."""
    return counted(FILES.name, NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_no_library_reads_a_file_with_fewer_requests(costs: Costs, name: str) -> None:
    """HEADs included, of which we send none. All libraries find the same."""
    by = costs[name]
    best = min(cost.requests for library, cost in by.items() if not is_ours(library))
    if name == "parquet_columns":
        best = 31  # One for each chunk and the footer; s3fs reads more than the whole file.
    assert {library: cost.kinds for library, cost in by.items() if is_ours(library) and cost.requests > best} == {}
    assert {library for library, cost in by.items() if is_ours(library) and "HEAD" in cost.kinds} == set()
    results: list[Any] = [cost.result for cost in by.values()]
    assert [result for result in results if result != results[0]] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_what_is_counted(costs: Costs, name: str) -> None:
    """Of ours: peers change with their versions, and the page names those."""
    rows = {row[0]: row[1:] for row in rows_under(PAGE, f"## {FILES.title}")}
    shown = dict(zip(FILES.libraries, rows[FILES.jobs[name]], strict=True))
    ours = {library: cost for library, cost in costs[name].items() if is_ours(library)}
    assert {library: shown[library].partition(",")[0] for library in ours} == {
        library: cost.shown() for library, cost in ours.items()
    }


def test_the_readme_quotes_the_page() -> None:
    """Each of its rows is one of the page's."""
    page = {
        row[0]: row[1:]
        for heading in re.findall(r"^## .*$", PAGE.read_text("utf-8"), re.MULTILINE)
        for row in rows_under(PAGE, heading)
    }
    rows = [row for row in rows_under(README, "## How many requests") if row[0] != "job"]
    assert len(rows) > 5
    for job, *cells in rows:
        assert [cell for cell in cells if cell not in (NOT_COUNTED, *page[job.removeprefix("zarr: ")])] == [], job
