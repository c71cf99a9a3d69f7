"""`make mutants`: each change of the lists in `tests/reliability/mutants/` must turn one of its own tests red.

    python -m tests.mutants [--seconds 30] [--seed 2026-11-29] [--searches 20] [NAME ...]

A mutant is an entry of a TOML file: a module, a text in it that stands there once, what takes its place, and the tests
that must fail then. One that lives on purpose says why, in ``lives``. Each runs in a copy of the tree below
`build/mutants/`, one a core; ``--seconds`` tries as many as fit, in an order that ``--seed`` chooses.

With ``--searches`` each of its tests below `tests/model/`, which draw examples, has to find it with each of as many
seeds, within a minute, and to pass for as long without the change.
"""

import argparse
import itertools
import os
import random
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.benches.source_tree import ROOT, project_files

LISTS = ROOT / "tests" / "reliability" / "mutants"
COPIES = ROOT / "build" / "mutants"
SECONDS_MAX = 300  # A mutant may hang, which is a failure too.
SEARCH_SECONDS = 60
FAILED = 1  # as pytest says it


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A change of one module, and the tests that must notice it. ``lives`` is the reason if none can."""

    name: str
    module: str
    before: str
    after: str
    tests: tuple[str, ...] = ()
    lives: str = ""

    def apply(self, root: Path) -> None:
        """Change the module below ``root``. ``ValueError`` unless the text stands in it once."""
        path = root / self.module
        source = path.read_text("utf-8")
        if source.count(self.before) != 1:
            raise ValueError(f"{self.name}: its text stands {source.count(self.before)} times in {self.module}")
        path.write_text(source.replace(self.before, self.after), "utf-8")


def read_lists() -> list[Mutant]:
    """All mutants, by the names of their files and their order in them."""
    texts = [path.read_text("utf-8") for path in sorted(LISTS.glob("*.toml"))]
    entries = [entry for text in texts for entry in tomllib.loads(text)["mutant"]]
    return [Mutant(**{**entry, "tests": tuple(entry.get("tests", ()))}) for entry in entries]


def copy_tree(root: Path) -> None:
    """The tree as it is now, without what git ignores."""
    shutil.rmtree(root, ignore_errors=True)
    for path in project_files():
        target = root / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def verdict(mutant: Mutant, root: Path, searches: int = 0) -> str:
    """What became of a mutant in a copy of the tree, which is as before afterwards; empty if it was killed."""
    try:
        mutant.apply(root)
        return searched(mutant, root, searches) if searches else tested(mutant, root, mutant.tests, {})
    except ValueError as error:
        return str(error)
    finally:
        shutil.copy(ROOT / mutant.module, root / mutant.module)


def tested(mutant: Mutant, root: Path, tests: Sequence[str], variables: Mapping[str, str]) -> str:
    """What became of a mutant in its tests; empty if one has failed."""
    # The tests are those of the copy, whatever the environment of the caller says.
    searches = {"AIOPREFETCH_SEARCH_SECONDS": "30", "AIOPREFETCH_SEARCH_SHRINKS": "0"}
    environment = {**os.environ, "PYTHONPATH": str(root), **searches, **variables}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    if done.returncode == FAILED:
        return ""
    return f"{mutant.name}: its tests pass" if done.returncode == 0 else f"{mutant.name}: {done.stdout[-2000:]}"


def searched(mutant: Mutant, root: Path, searches: int) -> str:
    """The searches that have not found a mutant; empty if all have, within their time."""
    left, longest = list[str](), 0.0
    tests = [test for test in mutant.tests if test.startswith("tests/model/")]
    for test, number in itertools.product(tests, range(searches)):
        begun = time.monotonic()
        variables = {"AIOPREFETCH_SEARCH_SECONDS": str(SEARCH_SECONDS), "AIOPREFETCH_SEARCH_SEED": str(number)}
        why = tested(mutant, root, [test], variables)
        seconds = time.monotonic() - begun
        longest = max(longest, seconds)
        # What fails without the change too, in the same time, has not found it.
        variables["AIOPREFETCH_SEARCH_SECONDS"] = str(seconds)
        if why or not tested(mutant, ROOT, [test], variables):
            left.append(f"{test} {number}{'' if why else ' (it fails without the change too)'}")
    found = len(tests) * searches - len(left)
    sys.stdout.write(f"{mutant.name}: {found} of {len(tests) * searches} searches found it, in {longest:.0f} s\n")
    return f"{mutant.name}: not found by {', '.join(left)}" if left else ""


def run(mutants: Sequence[Mutant], until: float, searches: int = 0) -> Iterator[tuple[Mutant, str | None]]:
    """Each mutant with its verdict; ``None`` for those that were not begun in time."""
    copies: SimpleQueue[Path] = SimpleQueue()
    workers = os.cpu_count() or 1
    for number in range(workers):
        copy_tree(COPIES / str(number))
        copies.put(COPIES / str(number))

    def judged(mutant: Mutant) -> str | None:
        if time.monotonic() > until:
            return None
        root = copies.get()
        try:
            return verdict(mutant, root, searches)
        finally:
            copies.put(root)

    with ThreadPoolExecutor(workers) as pool:
        yield from zip(mutants, pool.map(judged, mutants), strict=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants; 1 if one lives that should not, or cannot be made."""
    parser = argparse.ArgumentParser(description="Change the code as the lists say: a test must fail each time.")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no other mutant after that")
    parser.add_argument("--seed", help="try them in an order of its own")
    parser.add_argument("--searches", type=int, default=0, help="seeds with which each test of the model must find it")
    parser.add_argument("names", nargs="*", help="some of them")
    given = parser.parse_args(arguments)
    chosen = [one for one in read_lists() if not one.lives and (not given.names or one.name in given.names)]
    if given.searches:
        chosen = [one for one in chosen if any(test.startswith("tests/model/") for test in one.tests)]
    if given.seed is not None:
        random.Random(given.seed).shuffle(chosen)
    killed, alive = 0, []
    for mutant, found in run(chosen, time.monotonic() + given.seconds, given.searches):
        if found is None:
            continue
        killed += not found
        alive += [found] if found else []
        sys.stdout.write(found + "\n" if found else f"{mutant.name}: killed\n")
        sys.stdout.flush()
    sys.stdout.write(f"{killed} of {len(chosen)} mutants killed, {len(alive)} alive or unclear\n")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
