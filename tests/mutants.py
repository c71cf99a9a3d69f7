"""`make mutants`: each change of the lists in `tests/reliability/mutants/` must turn one of its own tests red.

    python -m tests.mutants [--seconds 30] [--seed 2026-11-29] [--searches 20] [NAME ...]

A mutant is an entry of a TOML file: a module, a text in it that stands there once, what takes its place, and the tests
that must fail then. One that lives on purpose says why, in ``lives``. Each runs in a copy of the tree below
`build/mutants/`, one a core; ``--seconds`` tries as many as fit, in an order that ``--seed`` chooses.

With ``--searches`` each of its tests below `tests/model/`, which draw examples, has to find it with each of as many
seeds, within a minute. What it has found counts only after a control: the same test, with the same seed and as many
rounds, has to pass in the tree as it is. Otherwise the model is red, and nothing that it finds says anything.
"""

import argparse
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from tests.repository.source_tree import ROOT, project_files

LISTS = ROOT / "tests" / "reliability" / "mutants"
COPIES = ROOT / "build" / "mutants"
SECONDS_MAX = 300  # A mutant may hang, which is a failure too.
SEARCH_SECONDS = 60
SEARCH_ENVIRONMENT = {"AIOPREFETCH_SEARCH_SECONDS": "30", "AIOPREFETCH_SEARCH_SHRINKS": "0"}
FOUND_IN = re.compile(r"found in round (\d+)")  # a note of tests.probes.search
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


def run_tests(root: Path, tests: Sequence[str], variables: Mapping[str, str]) -> tuple[int | None, str]:
    """The code with which pytest has ended in a tree, and its output; ``None`` if it did not come to an end."""
    # The tests are those of the tree, and not of the environment of the caller.
    environment = {**os.environ, "PYTHONPATH": str(root), **SEARCH_ENVIRONMENT, **variables}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout


class Controls:
    """Searches of the tree as it is, in a copy of its own. What was searched once is not searched again."""

    def __init__(self, root: Path, searches: int) -> None:
        self.searches = searches
        self.red = dict[str, str]()
        self._root = root
        self._rounds = dict[tuple[str, int], int]()
        self._lock = Lock()  # One at a time: mutants in other copies share what is known.

    def pass_in(self, test: str, number: int, rounds: int) -> bool:
        """Whether a test passes with a seed in its first rounds."""
        with self._lock:
            if test in self.red:
                return False
            if self._rounds.get((test, number), 0) < rounds:
                variables = {"AIOPREFETCH_SEARCH_SEED": str(number), "AIOPREFETCH_SEARCH_ROUNDS": str(rounds)}
                code, output = run_tests(self._root, [test], {**variables, "AIOPREFETCH_SEARCH_SECONDS": "inf"})
                if code != 0:
                    self.red[test] = f"seed {number}: {output[-2000:] or 'it hangs'}"
                    return False
                self._rounds[test, number] = rounds
            return True


def verdict(mutant: Mutant, root: Path, controls: Controls) -> str:
    """What became of a mutant in a copy of the tree, which is as before afterwards; empty if it was killed."""
    try:
        mutant.apply(root)
        return searched(mutant, root, controls) if controls.searches else tested(mutant, root)
    except ValueError as error:
        return str(error)
    finally:
        shutil.copy(ROOT / mutant.module, root / mutant.module)


def tested(mutant: Mutant, root: Path) -> str:
    """What became of a mutant in its tests; empty if one has failed."""
    code, output = run_tests(root, mutant.tests, {})
    if code in (None, FAILED):
        return ""
    return f"{mutant.name}: its tests pass" if code == 0 else f"{mutant.name}: {output[-2000:]}"


def searched(mutant: Mutant, root: Path, controls: Controls) -> str:
    """The searches that have not found a mutant; empty if all have, within their time."""
    verdicts = list[str]()
    for test in mutant.tests:
        if not test.startswith("tests/model/"):
            continue
        left, seconds = list[str](), list[float]()
        for number in range(controls.searches):
            begun = time.monotonic()
            until = {"AIOPREFETCH_SEARCH_SECONDS": str(SEARCH_SECONDS), "AIOPREFETCH_SEARCH_ROUNDS": "100000"}
            variables = {**until, "AIOPREFETCH_SEARCH_SEED": str(number)}
            code, output = run_tests(root, [test], variables)
            seconds.append(time.monotonic() - begun)
            rounds = FOUND_IN.search(output)
            if code != FAILED or rounds is None:
                left.append(str(number))
            elif not controls.pass_in(test, number, int(rounds[1])):
                return f"{mutant.name}: the model is red, {test} fails without any change, {controls.red[test]}"
        found = controls.searches - len(left)
        took = f"{statistics.median(seconds):.0f} s, {max(seconds):.0f} s at most"
        sys.stdout.write(f"{mutant.name}: {found} of {controls.searches} searches, in {took}, by {test}\n")
        if left:
            verdicts.append(f"not found by {test} with {', '.join(left)}")
    return f"{mutant.name}: {'; '.join(verdicts)}" if verdicts else ""


def run(mutants: Sequence[Mutant], until: float, controls: Controls) -> Iterator[tuple[Mutant, str | None]]:
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
            return verdict(mutant, root, controls)
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
    controls = Controls(COPIES / "control", given.searches)
    if given.searches:
        copy_tree(COPIES / "control")
    killed, alive = 0, []
    for mutant, found in run(chosen, time.monotonic() + given.seconds, controls):
        if found is None:
            continue
        killed += not found
        alive += [found] if found else []
        sys.stdout.write(found + "\n" if found else f"{mutant.name}: killed\n")
        sys.stdout.flush()
    sys.stdout.write(f"{killed} of {len(chosen)} mutants killed, {len(alive)} alive or unclear\n")
    for test, why in controls.red.items():
        sys.stdout.write(f"the model is red, and says nothing of any defect: {test}, {why}\n")
    return 1 if alive or controls.red else 0


if __name__ == "__main__":
    sys.exit(main())
