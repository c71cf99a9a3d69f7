"""All that a release needs: ``python -m tests.release`` runs it, and writes into the page of releases what was run.

Each step is a target of the Makefile. Names run those steps alone: each row has its date and its commit.
"""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, metadata, requires

from packaging.requirements import Requirement

from tests.repository.source_tree import ROOT

PAGE = ROOT / "docs" / "guides" / "releasing.md"
BEGIN, END = "<!-- checked: begin -->", "<!-- checked: end -->"
HEAD = ("| step | what | result | date | commit | time |", "| --- | --- | --- | --- | --- | --- |")
STEPS = {
    "lint": "style and types",
    "dist": "sdist and wheel: what they hold, their description and their size",
    "licences": "the licences of all that an extra installs",
    "docs": "the site, without a warning",
    "extras": "each extra alone, from the wheel",
    "test-full": "all tests on the lowest Python",
    "test-pythons": "demo and tests on later Pythons",
    "test-lowest": "unit tests with the lowest versions",
    "test-sweeps": "verbs spoiled, cancelled and killed; rows compared",
    "mutants": "each change of the lists turns a test red",
    "search": "200 new seeds of each scenario on virtual time",
    "soak": "ten minutes of reads, writes and scans, one response in twenty a fault",
    "fuzz": "ten minutes of what parses the bytes of strangers",
    "servers": "the conformance suite against servers that others wrote",
}
TARGETS = {"lint": "lint types"}
ARGUMENTS = {"fuzz": "--seconds 600", "soak": "--seconds 600"}
# Words of licences that ask for more than a notice of those who distribute a program.
ENOUGH = (" OR ", "MIT", "BSD", "Apache")  # One of several licences, by choice.
NOT_ALLOWED = ("AGPL", "GPL", "SSPL", "BUSL")


def installed_by(name: str, extras: Iterable[str], found: set[str]) -> set[str]:
    """The names of what a package brings along, with these extras of its own."""
    for text in requires(name) or ():
        wanted = Requirement(text)
        applies = wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in [*extras, ""])
        if applies and wanted.name not in found:
            with contextlib.suppress(PackageNotFoundError):
                requires(wanted.name)
                found.add(wanted.name)
                installed_by(wanted.name, wanted.extras, found)
    return found


def licences() -> list[str]:
    """The packages that an extra of ours installs and whose licence asks for more than a notice."""
    refused = []
    for name in installed_by("aioprefetch", metadata("aioprefetch").get_all("Provides-Extra", []), set()):
        meta = metadata(name)
        said = " ".join([str(meta["License-Expression"] or ""), *meta.get_all("Classifier", [])])
        said = re.sub("LGPL|GNU Lesser.*?\\(LGPL.*?\\)", "", said)
        if any(word in said for word in NOT_ALLOWED) and not any(word in said for word in ENOUGH):
            refused.append(name)
    return sorted(refused)


def _step(name: str) -> bool:
    if name == "licences":
        found = licences()
        sys.stdout.write(f"{', '.join(found) or 'none'} of the packages asks for more than a notice\n")
        return not found
    arguments = f"ARGS={ARGUMENTS[name]}" if name in ARGUMENTS else "ARGS="
    return subprocess.run(["make", *TARGETS.get(name, name).split(), arguments], cwd=ROOT, check=False).returncode == 0


def written(page: str, ran: Mapping[str, str]) -> str:
    """The page with the rows of the steps that ran, in the order of `STEPS`. Rows of other steps stay as they are."""
    before, _, rest = page.partition(BEGIN)
    old, _, after = rest.partition(END)
    rows = {name: row for row in old.splitlines() for name in STEPS if row.startswith(f"| `{name}` |")}
    rows.update(ran)
    table = "\n".join([*HEAD, *(rows.get(name, f"| `{name}` | {STEPS[name]} | not run | | | |") for name in STEPS)])
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main() -> int:
    """The number of steps that failed."""
    names = sys.argv[1:] or list(STEPS)
    if unknown := set(names) - STEPS.keys():
        sys.exit(f"there is no step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    os.environ["AIOPREFETCH_NO_SKIPS"] = "1"
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    failed = 0
    for name in names:
        began = time.monotonic()
        passed = _step(name)
        failed += not passed
        result = "passed" if passed else "**failed**"
        minutes = (time.monotonic() - began) / 60
        row = f"| `{name}` | {STEPS[name]} | {result} | {datetime.now(UTC):%Y-%m-%d} | {commit} | {minutes:.0f} min |"
        sys.stdout.write(f"{row}\n")
        PAGE.write_text(written(PAGE.read_text("utf-8"), {name: row}), "utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main())
