"""What we make of the faults that the page has beside other libraries."""

import pytest

from aioprefetch.testing.library_suite import LIBRARY_FAULTS, LibraryFault, run_library_suite
from tests.libraries.faults import PAGE, Ours


@pytest.mark.parametrize("fault", LIBRARY_FAULTS, ids=lambda fault: f"{fault.job}: {fault.says}")
async def test_our_column(fault: LibraryFault) -> None:
    """A fault that comes once is mended, one that lasts is an error, and neither leaves anything behind."""
    [found] = await run_library_suite(Ours, faults=[fault])
    assert found.happened
    assert str(found) == ("error" if fault.is_lasting or fault.overwrites else "exact")
    assert f"| {fault.says} | {fault.job} | {found} |" in PAGE.read_text("utf-8")
