"""Which URLs lead to us: by entry points where the package is installed, by ``register`` elsewhere."""

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import fsspec
import pytest

import aioprefetch as ap
from aioprefetch.fsspec.schemes import BY_PROTOCOL
from tests.probes.programs import run_installed, run_program
from tests.repository.source_tree import ROOT

# Far from a checkout, by URLs alone: fsspec imports us, and pandas, dask and the like name nothing of ours.
INSTALLED = """
import sys
import fsspec
with fsspec.open("aioprefetch+memory://store/k.txt.gz", "w", compression="infer") as file:
    file.write("text")
import aioprefetch
assert aioprefetch.__file__.startswith(sys.argv[1]), aioprefetch.__file__
with fsspec.open("aioprefetch+memory://store/k.txt.gz", "r", compression="infer") as file:
    print(file.read())
names = [name for name in fsspec.available_protocols() if name.startswith("aioprefetch")]
print(len(names), {fsspec.get_filesystem_class(name).__module__ for name in names})
print(fsspec.get_filesystem_class("http").__module__)
"""


def test_urls_of_an_installed_wheel(tmp_path: Path) -> None:
    run = run_installed(INSTALLED, tmp_path)
    ours = sum(name.startswith("aioprefetch") for name in BY_PROTOCOL)
    assert (run.returncode, run.stderr) == (0, "")
    first, second, third = run.stdout.splitlines()
    assert (first, third) == ("text", "fsspec.implementations.http")
    assert second.startswith(f"{ours} ")
    assert "aioprefetch.fsspec" in second


def test_every_protocol_of_ours_is_an_entry_point() -> None:
    """Those that begin with our name; others are taken over by ``register`` alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = project["entry-points"]["fsspec.specs"]
    assert entries.keys() == {name for name in BY_PROTOCOL if name.startswith("aioprefetch")}
    for name, value in entries.items():
        module, _, attribute = value.partition(":")
        assert getattr(import_module(module), attribute) is BY_PROTOCOL[name]


def test_the_package_alone_takes_no_url_over() -> None:
    program = """
import fsspec, fsspec.registry
import aioprefetch as ap
before = dict(fsspec.registry)
ap.fsspec.S3FileSystem, ap.fsspec.AioPrefetchFileSystem
assert dict(fsspec.registry) == before
ap.fsspec.register()
print(fsspec.get_filesystem_class("aioprefetch+s3").__name__, "s3" in fsspec.registry)
ap.fsspec.register("s3", "s3a", "gs", "http")
print({fsspec.get_filesystem_class(name).__name__ for name in ("s3", "s3a", "gs", "http")} == {
    "S3FileSystem", "GSFileSystem", "HttpFileSystem"})
print(fsspec.filesystem("s3", anon=True))
"""
    assert run_program(program) == "S3FileSystem False\nTrue\n<S3FileSystem s3://>\n"


def test_register_takes_protocols_over(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: dict[str, Any] = {}

    def keep(name: str, cls: type, *, clobber: bool) -> None:
        registry[name] = (cls, clobber)

    monkeypatch.setattr("aioprefetch.fsspec.schemes.register_implementation", keep)
    ap.fsspec.register("s3", "s3a", "gs", "http")
    assert registry == {name: (BY_PROTOCOL[name], True) for name in ("s3", "s3a", "gs", "http")}
    with pytest.raises(ap.ConfigInvalid, match="'ftp' is not a protocol that can be taken over"):
        ap.fsspec.register("ftp")
    with pytest.raises(ap.InvalidType, match="one by one"):
        ap.fsspec.register(["s3"])  # type: ignore[arg-type]
    assert BY_PROTOCOL["abfs"] is BY_PROTOCOL["abfss"] is BY_PROTOCOL["az"]
    assert all(fsspec.get_filesystem_class(name) is cls for name, cls in BY_PROTOCOL.items() if "+" in name)
