"""Tests stay outside: they use arguments, statistics and documented probes, and no private names of what they test."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.repository.source_tree import ROOT, parse, python_files

# Private by their names alone: of the interpreter and other packages, and columns whose names begin so.
FOREIGN = {
    *("_exit", "_replace", "_run", "_scheduled", "_jdf", "_jvm", "_gateway", "_cat_file", "_get_column_indices"),
    *("_current_frames", "_make_api_call", "_get_session", "_hypothesis_internal_use_settings"),
    *("_SSO_TOKEN_CACHE_DIR", "SLEEP_TIME"),
    *("_etag", "_file", "_mtime", "_offset", "_repr_html_"),
}
# What is left. No file gets more of them; one that needs none is taken off the list.
LEFT: dict[str, int] = {
    "tests/stores/gated_reader.py": 2,
    "tests/benchmarks/clients.py": 2,
    "tests/docs/test_blocks.py": 1,
    "tests/model/source_crashes/test_crash_matrix.py": 1,
    "tests/model/test_lance_v20.py": 1,
    "tests/model/test_lance_v21.py": 1,
    "tests/model/test_parquet_model.py": 3,
    "tests/spark/test_stream_reader.py": 2,
    "tests/spark/test_stream_start.py": 2,
    "tests/unit/lance/test_footer.py": 1,
    "tests/unit/lance/v20/test_indirect.py": 3,
    "tests/unit/lance/v20/test_types.py": 3,
    "tests/unit/lance/v21/test_hostile_pages.py": 1,
    "tests/unit/layers/lru_cache/test_cache_failures.py": 1,
    "tests/unit/layers/lru_cache/test_fill.py": 2,
    "tests/unit/parquet/test_footer_cache.py": 1,
    "tests/unit/parquet/test_row_groups.py": 2,
    "tests/unit/reader/ahead.py": 2,
    "tests/unit/services/http/test_http_failures.py": 1,
    "tests/unit/services/http/test_http_lacking.py": 1,
    "tests/unit/services/obspec/test_obspec_listing.py": 1,
    "tests/unit/services/s3/test_live.py": 1,
    "tests/unit/services/s3/test_identity.py": 1,
    "tests/unit/services/s3/test_secrets.py": 2,
    "tests/unit/services/conftest.py": 2,
    "tests/unit/source/formats/test_linear.py": 1,
    "tests/unit/source/list/test_finishing.py": 1,
    "tests/unit/source/reading/test_infer.py": 1,
    "tests/unit/source/state/test_state_damage.py": 1,
}


# What a file has that uses a private name of another object: few have it, and only these are parsed.
SUSPECT = re.compile(r"(?<!\bself)(?<!\bcls)\._(?!_)|\bsetattr\(")


def private_names(path: Path) -> list[str]:
    """The private attributes of other objects, and the private names and constants that are patched."""
    found: list[str] = []
    if not SUSPECT.search(path.read_text("utf-8")):
        return found
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            found += [node.attr] if is_private(node.attr) and not is_own else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            names = [text.rpartition(".")[2] for text in texts]
            found += [name for name in names if is_private(name) or (name.isupper() and len(name) > 1)]
    return [name for name in found if name not in FOREIGN]


def is_private(name: str) -> bool:
    """Whether a name begins with one underscore."""
    return name.startswith("_") and not name.startswith("__")


def test_tests_use_no_private_names() -> None:
    counts = Counter(
        {path.relative_to(ROOT).as_posix(): len(private_names(path)) for path in python_files(ROOT / "tests")}
    )
    assert {path: count for path, count in counts.items() if count > LEFT.get(path, 0)} == {}
    assert {path: count for path, count in LEFT.items() if counts[path] < count} == {}
