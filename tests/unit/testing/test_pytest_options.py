"""The options of tests/conftest.py: replay lines, profiles of Hypothesis, and skips that fail."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.profile import pairwise

ROOT = Path(__file__).parents[3]

TESTS = {
    "skips": """
        import pytest

        def test_expected():
            pytest.skip("no IPv6 on this machine")

        def test_unexpected():
            pytest.skip("the moon is full")

        @pytest.mark.xfail(strict=True)
        def test_fails_as_expected():
            raise AssertionError
    """,
    "module": """
        import pytest

        pytest.importorskip("no_such_package_anywhere")
    """,
    "seed": """
        import pytest

        @pytest.mark.virtual
        async def test_schedule():
            raise AssertionError

        async def test_plain():
            raise AssertionError
    """,
    "examples": """
        from hypothesis import given, settings, strategies as st

        drawn = []

        @settings(max_examples=50)
        @given(st.integers())
        def test_numbers(number):
            drawn.append(number)

        def test_how_many():
            print("drawn", len(drawn), drawn)

        @given(st.integers())
        def test_small(number):
            assert number < 1000
    """,
}


def run(tmp_path: Path, *options: str, **environment: str) -> str:
    """The output of pytest over the modules ``TESTS``, with the project's conftest and more options."""
    names = [option for option in options if option in TESTS]
    for name in names:
        (tmp_path / f"test_{name}.py").write_text(textwrap.dedent(TESTS[name]))
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    known = {key: value for key, value in os.environ.items() if not key.startswith(("AIOPREFETCH_", "PYTEST_"))}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--continue-on-collection-errors"),
            *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)),
            *(option for option in options if option not in TESTS),
            *(f"test_{name}.py" for name in names),
        ],
        env=known | {"PYTHONPATH": str(ROOT)} | environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_skips_fail_where_the_environment_says_so(tmp_path: Path) -> None:
    """A skip of a test or a module fails, unless it is pinned or the test is expected to fail."""
    found = run(tmp_path, "skips", "module", AIOPREFETCH_NO_SKIPS="1")
    assert "1 failed, 1 skipped, 1 xfailed, 1 error" in found
    assert "the moon is full" in found
    assert "no_such_package_anywhere" in found


def test_a_schedule_that_fails_says_how_to_replay_it(tmp_path: Path) -> None:
    """The replay line has the seed; a test on another clock has no such line."""
    found = run(tmp_path, "seed", "--virtual-seed=random")
    assert len(re.findall(r"test_seed\.py::test_schedule' --virtual-seed=\d+\n", found)) == 1
    assert "test_plain' --virtual-seed" not in found


@pytest.mark.parametrize(("profile", "examples"), [("quick", 20), ("full", 50), ("search", 500)])
def test_the_profile_chooses_how_many_examples_are_drawn(tmp_path: Path, profile: str, examples: int) -> None:
    """The profile scales the examples of a test; a failure prints its replay line."""
    found = run(tmp_path, "examples", AIOPREFETCH_TESTS=profile)
    assert f"\ndrawn {examples} " in found
    assert "reproduce_failure" in found


def test_an_unknown_profile_is_refused(tmp_path: Path) -> None:
    """The error lists the known profiles."""
    assert "AIOPREFETCH_TESTS='most' must be one of quick, full, search" in run(
        tmp_path, "examples", AIOPREFETCH_TESTS="most"
    )


def test_pairs_of_parameters_are_all_kept() -> None:
    """All pairs are kept by far fewer combinations, and no invalid pair is added."""
    product = [(a, b, c) for a in range(4) for b in "xyz" for c in (True, False) if not (a == 0 and c)]
    kept = pairwise(product)
    assert len(kept) < len(product)
    assert set(kept) <= set(product)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert {(row[i], row[j]) for row in kept} == {(row[i], row[j]) for row in product}
