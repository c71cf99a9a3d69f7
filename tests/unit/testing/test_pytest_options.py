"""tests/conftest.py: a machine that lacks something does not pass with fewer tests; and pairs of parameters."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

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


def test_pairs_of_parameters_are_all_kept() -> None:
    """All pairs are kept by far fewer combinations, and no invalid pair is added."""
    product = [(a, b, c) for a in range(4) for b in "xyz" for c in (True, False) if not (a == 0 and c)]
    kept = pairwise(product)
    assert len(kept) < len(product)
    assert set(kept) <= set(product)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert {(row[i], row[j]) for row in kept} == {(row[i], row[j]) for row in product}
