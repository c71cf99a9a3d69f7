"""What a release uploads: ``python -m tests.distribution`` builds sdist and wheel into ``dist/`` and checks both.

The wheel is built from the sdist, as an installer without wheels does. Both must hold exactly the files that git tracks
for them, describe themselves in a way that PyPI shows, and carry the version of the package; the wheel has a budget.
"""

import email
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import aioprefetch
from tests.repository.source_tree import ROOT, project_files

DIST = ROOT / "dist"
WHEEL_BYTES_MAX = 1_572_864  # 1.5 MiB
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
# PySpark looks for data sources in top-level modules, so this one is installed there.
MOVED = {"aioprefetch/spark/registration.py": "pyspark_aioprefetch.py"}


def tracked(*prefixes: str) -> set[str]:
    """The files of the project below some folders, or of these names."""
    names = {path.relative_to(ROOT).as_posix() for path in project_files()}
    return {name for name in names if name.startswith(prefixes)}


def run(*arguments: str | Path) -> None:
    """Run a module of Python; what it printed goes to standard error if it fails."""
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")


def check_names(kind: str, found: set[str], expected: set[str]) -> None:
    """Fail with the names that are missing or too many."""
    if found != expected:
        sys.exit(f"{kind}: missing {sorted(expected - found)}, not expected {sorted(found - expected)}")


def check_sdist(path: Path) -> None:
    """The package, its tests, its documents, and what builds them."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = tracked(".ci/", "aioprefetch/", "tests/", "docs/", "examples/")
    files |= tracked("CHANGELOG.md", "LICENSE", "Makefile", "README.md", "pyproject.toml", ".gitignore")
    check_names("sdist", names, {*files, "PKG-INFO"})


def check_wheel(path: Path) -> None:
    """The package alone; its version, its size."""
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        described = email.message_from_bytes(archive.read(metadata))
    folder = metadata.removesuffix("METADATA")
    code = {MOVED.get(name, name) for name in tracked("aioprefetch/")}
    check_names("wheel", names, code | {f"{folder}{name}" for name in METADATA})
    if described["Version"] != aioprefetch.__version__:
        sys.exit(f"wheel: version {described['Version']}, but the package says {aioprefetch.__version__}")
    if (size := path.stat().st_size) > WHEEL_BYTES_MAX:
        sys.exit(f"wheel: {size:,} bytes, which is more than {WHEEL_BYTES_MAX:,}")


def main() -> int:
    """Build, check, and move both into ``dist/``."""
    with tempfile.TemporaryDirectory() as temporary:
        run("build", "--no-isolation", "--outdir", temporary, ROOT)
        (sdist,), (wheel,) = Path(temporary).glob("*.tar.gz"), Path(temporary).glob("*.whl")
        check_sdist(sdist)
        check_wheel(wheel)
        run("twine", "check", "--strict", sdist, wheel)
        run("check_wheel_contents", wheel)
        DIST.mkdir(exist_ok=True)
        for path in (sdist, wheel):
            (DIST / path.name).write_bytes(path.read_bytes())
            sys.stdout.write(f"dist/{path.name}: {path.stat().st_size:,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
