"""The README says what this is within two screens, and its links lead somewhere: here, and on the package index."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.repository.source_tree import ROOT

README = (ROOT / "README.md").read_text("utf-8")
LINES_MAX = 104
TARGET = re.compile(r"\]\(([^)]+)\)")
MAPS = sorted(path.name for path in (ROOT / "docs/maps").glob("*.md"))


def test_it_is_two_screens() -> None:
    """A block for asyncio and one for Spark, one picture, one table; the rest is in the documentation."""
    assert len(README.splitlines()) <= LINES_MAX
    assert re.findall(r"^```(python.*)$", README, re.MULTILINE) == ["python", "python no-run"]
    assert len(re.findall(r"^!\[", README, re.MULTILINE)) == 1
    assert len(re.findall(r"^\| --- ", README, re.MULTILINE)) == 1


def test_both_commands_stand_near_the_top() -> None:
    top = "\n".join(README.splitlines()[:12])
    assert re.findall(r"^make (\w+)", top, re.MULTILINE) == ["demo", "test"]


def test_each_design_has_one_line() -> None:
    assert sorted(re.findall(r"^\* \[[^\]]+\]\(docs/maps/([\w.-]+)\): .+\.$", README, re.MULTILINE)) == MAPS


def test_it_is_read_in_a_clone() -> None:
    """Without a network: every link leads to a file beside it."""
    targets = TARGET.findall(README)
    assert len(targets) > 10
    assert [target for target in targets if not (ROOT / target.partition("#")[0]).exists()] == []


def test_the_package_index_gets_whole_addresses(tmp_path: Path) -> None:
    """It shows the text alone."""
    pytest.importorskip("hatch_fancy_pypi_readme", reason="the group dist is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        (name,) = [name for name in archive.getnames() if name.endswith("/PKG-INFO")]
        file = archive.extractfile(name)
        assert file is not None
        described = file.read().decode()
    targets = TARGET.findall(described)
    assert len(targets) == len(TARGET.findall(README))
    assert [target for target in targets if not target.startswith("https://")] == []
    (picture,) = [target for target in targets if target.endswith(".png")]
    assert picture.startswith("https://raw.githubusercontent.com/")
    assert described.count("# aioprefetch\n") == 1
