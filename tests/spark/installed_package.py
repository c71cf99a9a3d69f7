"""The package as a user installs it: built as a wheel, unpacked into a directory that is on no path yet."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository.source_tree import ROOT

BUILD_SECONDS_MAX = 120
SITE = "site"


@pytest.fixture(scope="session")
def installed_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory to import the installed wheel from. The workers of one run of the tests share it."""
    run_id = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run_id is None:
        return install_wheel(tmp_path_factory.mktemp("installed"))
    directory = tmp_path_factory.getbasetemp().parent / f"installed-{run_id}"
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return directory / SITE if (directory / SITE).exists() else install_wheel(directory)


def install_wheel(directory: Path) -> Path:
    """Build the wheel of this repository and install it, alone, below ``directory``."""
    wheels, target = directory / "wheels", directory / "part"
    run("-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(ROOT))
    (wheel,) = wheels.glob("*.whl")
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    return target.rename(directory / SITE)


def run(*arguments: str) -> None:
    """Run Python with arguments; its output when it fails."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
