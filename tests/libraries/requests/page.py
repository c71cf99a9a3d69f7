"""The tables of counted requests, and the pages that have them: between two marks there are tables and nothing else."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version

from tests.libraries.requests.cost import Cost, Costs, Section
from tests.repository.source_tree import ROOT

README = ROOT / "README.md"
PAGE = ROOT / "docs" / "reference" / "requests.md"
NOT_COUNTED = "–"
BEGIN, END = "<!-- requests: begin -->", "<!-- requests: end -->"
# The rows of the README: a section, a job, and its library of ours that is shown.
SHORT = (
    *(("files", job, "aioprefetch") for job in ("zip_member", "hdf5_walk", "xarray_open", "parquet_columns", "png")),
    ("arrays", "read_rows_of_shards", "aioprefetch zarr"),
)
PEERS = {"s3fs": "s3fs", "obstore": "obstore fsspec", "smart_open": "smart_open"}
COUNTED_BESIDE = ("s3fs", "obstore", "smart_open", "zarr", "pyarrow", "opendal", "pandas", "xarray", "h5py")


def write(sections: Sequence[Section], found: Mapping[str, Costs]) -> None:
    """Fill both pages in."""
    versions = ", ".join(f"{name} {version(name)}" for name in COUNTED_BESIDE)
    for path, text in ((README, short_table(sections, found)), (PAGE, f"{tables(sections, found)}\n\n{versions}.")):
        page = path.read_text("utf-8")
        before, begin, rest = page.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise ValueError(f"{path} has no {BEGIN} and {END}")
        path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", "utf-8")


def tables(sections: Sequence[Section], found: Mapping[str, Costs]) -> str:
    """A heading and a table for each section that was measured."""
    return "\n\n".join(
        f"## {section.title}\n\n{section.about}\n\n{_table(section, found[section.name])}"
        for section in sections
        if section.name in found
    )


def _table(section: Section, costs: Costs) -> str:
    rows = [[section.jobs[name], *(_cell(by[library]) for library in section.libraries)] for name, by in costs.items()]
    return _markdown(["job", *section.libraries], rows)


def short_table(sections: Sequence[Section], found: Mapping[str, Costs]) -> str:
    """A few jobs."""
    jobs = {section.name: section.jobs for section in sections}
    rows = []
    for section, name, ours in SHORT:
        by = found[section][name]
        # Over zarr a peer goes by its own name.
        peers = [by.get(theirs) or by.get(peer) for peer, theirs in PEERS.items()]
        shown = [_cell(cost) if cost is not None else NOT_COUNTED for cost in (by[ours], *peers)]
        rows.append([f"zarr: {jobs[section][name]}" if section == "arrays" else jobs[section][name], *shown])
    return _markdown(["job", "aioprefetch", *PEERS], rows)


def _cell(cost: Cost) -> str:
    return f"{cost.shown()}, {cost.shown_bytes()}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
