"""The package as a user installs it: built as a wheel, unpacked into a directory that is on nobody's path yet."""

import subprocess
import sys
from pathlib import Path

from tests.tidy.source_tree import ROOT

BUILD_SECONDS_MAX = 120


def install_wheel(directory: Path) -> Path:
    """Build the wheel of this repository and install it, alone, below ``directory``; where it is importable from."""
    wheels, target = directory / "wheels", directory / "site"
    run("-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(ROOT))
    (wheel,) = wheels.glob("*.whl")
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    return target


def run(*arguments: str) -> None:
    """Run Python with arguments; its output when it fails."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
