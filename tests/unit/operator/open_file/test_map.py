"""The pages about openFile() say what the tables of the code say."""

from aioprefetch.operator.open_file import KEYS
from tests.repository.doc_pages import code, rows_under
from tests.repository.source_tree import ROOT
from tests.unit.operator.open_file.clauses_vendor import CAPABILITIES

MAP = ROOT / "docs" / "maps" / "openfile.md"
OPTIONS = ROOT / "docs" / "reference" / "options.md"


def test_the_keys_of_the_map() -> None:
    """In order, with what is done with them and what they become."""
    documented = [[cell.strip("`") for cell in row[:3]] for row in rows_under(MAP, "## The keys")]
    expected = [[key.name, key.treatment, key.option or "—"] for key in KEYS.values()]
    assert documented == [*expected, ["fs.s3a.select.*", "refused", "—"]]


def test_the_keys_of_the_options() -> None:
    """The same keys and options."""
    documented = {code(row[0]): row[3].strip("`") for row in rows_under(OPTIONS, "## Keys of openFile()")}
    assert documented == {key.name: key.option or "—" for key in KEYS.values()}


def test_the_capabilities_of_the_map() -> None:
    """What a reader answers."""
    documented = {code(row[0]): row[1] == "yes" for row in rows_under(MAP, "## Capabilities")}
    assert documented == CAPABILITIES
