"""What is generated from the rows of options: types for callers, and tables of the pages about options.

``python -m tests.repository.option_files`` writes all of it; a test compares.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, replace
from pathlib import Path
from typing import Any

from aioprefetch import services
from aioprefetch.layers import ConcurrentLimitLayer, RetryLayer
from aioprefetch.operator.from_uri import BUILT_IN, OPERATOR_OPTIONS, recipe_of, store_options
from aioprefetch.operator.operator import Operator
from aioprefetch.options import FLAG, Choice, Integer, Option, Seconds, Size, table_of
from aioprefetch.reader.options import ReaderRows
from aioprefetch.runtime.options import DiskCache
from aioprefetch.spark.options import SOURCE_OPTIONS
from tests.repository.source_tree import PACKAGE, ROOT

# The recipes, each with a word for its stores in the names of classes.
RECIPES = {recipe_of(scheme): recipe_of(scheme).__name__ for scheme in BUILT_IN}
BEGIN, END = "generated: {}", "end of generated"
OPTIONS_PAGE = ROOT / "docs" / "reference" / "options.md"
SPARK_PAGE = ROOT / "docs" / "reference" / "spark-options.md"

# --- types ------------------------------------------------------------------------------------------------------------


def typed(row: Option) -> str:
    """The type of an option for callers: ``None`` is as good as none, but for readers, whose signature says it."""
    annotation = row.annotation
    if isinstance(row.kind, Choice) and annotation.removesuffix(" | None") == "str":
        annotation = f"Literal[{str(row.kind.words)[1:-1]}]".replace("'", '"')
    is_exact = table_of(ReaderRows).get(row.name) == row and row.default is not None
    return annotation if is_exact or annotation.endswith("| None") else f"{annotation} | None"


def typed_dict(name: str, bases: Iterable[str], doc: str, rows: Iterable[Option]) -> str:
    """The source of a class."""
    body = "".join(f"    {row.name}: {typed(row)}\n" for row in rows)
    said = f'    """{doc}"""\n' + ("\n" if body else "") if doc else ""
    return f"class {name}({', '.join(bases)}, total=False):\n{said}{body}"


def store_types() -> str:
    """Groups of options by the stores that take them, and from these the options of each recipe and of all."""
    takers: dict[tuple[tuple[str, ...], bool], dict[str, Option]] = {}
    own = {recipe: rows_by_uri(recipe) for recipe in RECIPES}
    for name in dict.fromkeys(name for rows in own.values() for name in rows):
        having = [recipe for recipe in RECIPES if name in own[recipe]]
        row = own[having[0]][name]
        takers.setdefault((tuple(RECIPES[recipe] for recipe in having), row.kind.is_text), {})[name] = row
    groups = {f"_{'And'.join(names)}{'' if text else 'Objects'}": key for key in takers for names, text in [key]}
    parts = [typed_dict(group, ["TypedDict"], "", takers[key].values()) for group, key in groups.items()]
    for recipe, name in RECIPES.items():
        bases = [group for group, key in groups.items() if name in key[0]]
        schemes = ", ".join(f"``{scheme}://``" for scheme in recipe.schemes)
        parts.append(typed_dict(f"{name}UriOptions", bases or ["TypedDict"], f"The options of {schemes}.", ()))
    texts = [group for group, key in groups.items() if key[1]]
    objects = [group for group, key in groups.items() if not key[1]]
    all_doc = "The options of all stores. An option of another scheme is ``ConfigInvalid``."
    parts.append(typed_dict("StoreTexts", texts, "Those that have a form as text.", ()))
    parts.append(typed_dict("StoreOptions", ["StoreTexts", *objects], all_doc, ()))
    return "\n\n".join(parts)


def rows_by_uri(recipe: type) -> dict[str, Option]:
    """The rows of the options that a recipe takes by URI."""
    return {name: row for name, row in table_of(recipe).items() if row.given == "keyword"}


def operator_types() -> str:
    """The options of an operator and of a reader."""
    reader = dict(table_of(ReaderRows))
    blocks = [reader.pop(name) for name in ("block_bytes", "prefetch_blocks")]
    others = [row for name, row in OPERATOR_OPTIONS.items() if name not in ("block_bytes", "prefetch_blocks")]
    described = {
        "BlockOptions": ("The blocks of an operator, for all of its readers, and those of one reader.", blocks),
        "LimitOptions": ("The options of every operator beside ``BlockOptions``; ``Operator`` documents them.", others),
        "ReadingOptions": (
            "The options of a reader beside ``BlockOptions``; ``ReaderRows`` documents them.",
            reader.values(),
        ),
    }
    return "\n\n".join(typed_dict(name, ["TypedDict"], doc, rows) for name, (doc, rows) in described.items())


def spark_types() -> str:
    """The options of ``read`` and ``stream``, but for what has a parameter of its own, and what the session says."""
    own = {"path", "parser", "columns", "filters", "format", "session_time_zone", "state_location"}
    rows = [one.row for one in SOURCE_OPTIONS.values() if one.row.name not in own]
    rows = [*dict.fromkeys(rows), replace(SOURCE_OPTIONS["sep"].row, name="delimiter")]
    bases = ["StoreTexts", "LimitOptions", "BlockOptions"]
    docs = {"all": "batches and of streams", "batch": "``read``", "stream": "``stream``, which places the state"}
    names = {"all": "SourceOptions", "batch": "BatchOptions", "stream": "StreamOptions"}
    return "\n\n".join(
        typed_dict(
            names[scope],
            bases if scope == "all" else ["SourceOptions"],
            f"The options of {docs[scope]}.",
            [row for row in rows if row.scope == scope],
        )
        for scope in names
    )


# --- tables of pages --------------------------------------------------------------------------------------------------


def paragraphs(owner: Any) -> dict[str, str]:
    """The documentation of parameters in the docstring of a class and its bases, each as one line."""
    found: dict[str, str] = {}
    for base in reversed(inspect.getmro(owner)):
        text = inspect.cleandoc(base.__doc__ or "").partition("Parameters\n----------\n")[2]
        for name, body in re.findall(r"^(\w+)\n((?:    .*\n?)+)", text, re.MULTILINE):
            found[name] = " ".join(body.split()).replace("``", "`")
    return found


def described(owner: Any) -> Iterator[tuple[Option, str]]:
    """The rows of a class, with their documentation."""
    texts = paragraphs(owner)
    for row in sorted(table_of(owner).values(), key=lambda row: row.given != "uri"):
        yield row, row.doc or texts.get(row.target, "")


def unit_of(row: Option) -> str:
    """The unit of a number."""
    if isinstance(row.kind, Size) or row.name == "size":
        return "bytes"
    return "seconds" if isinstance(row.kind, Seconds) else "blocks" if row.name == "prefetch_blocks" else ""


def default_of(row: Option) -> str:
    """A default as pages write it."""
    if row.default is MISSING:
        return "required"
    if isinstance(row.kind, Size) and isinstance(row.default, int) and row.default:
        for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if not row.default & ((1 << shift) - 1):
                return f"{row.default >> shift} {unit}"
    return f"`{row.default!r}`"


def type_of(row: Option) -> str:
    """A short word for the types of a value."""
    if row.kind is FLAG:
        return "bool"
    if isinstance(row.kind, Integer | Seconds) and "bool | " not in row.annotation:
        return "float" if isinstance(row.kind, Seconds) else "int"
    text = re.sub(r"Literal\[.*?\]", "str", row.annotation.removesuffix(" | None"))
    shorter = {
        "os.PathLike[str]": "PathLike",
        "Mapping[str, str | Secret]": "mapping",
        "ByteCount": "int",
        "Any": "object",
    }
    for word, short in shorter.items():
        text = text.replace(word, short)
    return text.replace("BaseUrl", "str").replace(" | ", ", ").removesuffix(", None")


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    rows = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    rule = ["---" for _ in head]
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *rows))


def options_table(owner: Any, *, by_uri: bool = False, rows: Mapping[str, Option] | None = None) -> str:
    """The table of the options of a class."""
    head = ["name", "type", "unit", "default", *(["`from_uri`"] if by_uri else []), "meaning"]
    given = {"keyword": "yes", "uri": "in the URI", "recipe": "no"}
    found = described(owner) if rows is None else ((row, paragraphs(owner)[name]) for name, row in rows.items())
    return table(
        head,
        (
            [f"`{row.name}`", type_of(row), unit_of(row), default_of(row), *([given[row.given]] if by_uri else []), doc]
            for row, doc in found
        ),
    )


def variables_table() -> str:
    """All variables of the environment."""
    rows = {row.name: row for scheme in BUILT_IN for row in store_options(scheme).values() if row.has_variable}
    order = [name for name in rows if name not in OPERATOR_OPTIONS] + list(OPERATOR_OPTIONS)
    whose = {name: [RECIPES[recipe] for recipe in RECIPES if name in rows_by_uri(recipe)] for name in rows}
    return table(
        ["variable", "of"], ([f"`{rows[name].variable}`", ", ".join(whose[name]) or "every operator"] for name in order)
    )


def spark_table() -> str:
    """The options of stores and operators for Spark."""
    lines: dict[str, list[str]] = {}
    schemes = {recipe: recipe.schemes[0] for recipe in RECIPES}
    for recipe in RECIPES:
        texts = paragraphs(recipe)
        for name, row in rows_by_uri(recipe).items():
            if row.kind.is_text and row.spark not in lines:
                having = ", ".join(schemes[one] for one in RECIPES if name in rows_by_uri(one))
                redacted = ". Spark redacts the value" if row.kind.is_secret else ""
                lines[row.spark] = [f"{having}: {first_sentence(texts[row.target])}{redacted}", row.kind.right_text]
    texts = paragraphs(Operator)
    lines |= {row.spark: [first_sentence(texts[name]), row.kind.right_text] for name, row in OPERATOR_OPTIONS.items()}
    return table(["option", "value", "meaning"], ([f"`{name}`", right, said] for name, (said, right) in lines.items()))


def first_sentence(text: str) -> str:
    """The first sentence of a text, without its full stop."""
    return re.split(r"\.(?: |$)", text, maxsplit=1)[0]


# --- files ------------------------------------------------------------------------------------------------------------

PARTS: Mapping[Path, Mapping[str, Any]] = {
    PACKAGE / "services" / "uri_options.py": {"types": store_types},
    PACKAGE / "operator" / "options.py": {"types": operator_types},
    PACKAGE / "spark" / "read_options.py": {"types": spark_types},
    OPTIONS_PAGE: {
        "Operator": lambda: options_table(Operator, rows=OPERATOR_OPTIONS),
        "DiskCache": lambda: options_table(DiskCache),
        "Reader": lambda: options_table(ReaderRows),
        **{
            name: (lambda name=name: options_table(getattr(services, name), by_uri=True))
            for name in ("Memory", "Fs", "Http", "S3", "Gcs", "Azure")
        },
        "ConcurrentLimitLayer": lambda: options_table(ConcurrentLimitLayer),
        "RetryLayer": lambda: options_table(RetryLayer),
        "variables": variables_table,
    },
    SPARK_PAGE: {"stores": spark_table},
}


def file_text(path: Path) -> str:
    """A file, its generated parts as the rows have them."""
    mark, close = ("<!-- ", " -->") if path.suffix == ".md" else ("# ", "")
    text = path.read_text("utf-8")
    for name, make in PARTS[path].items():
        begin, end = f"{mark}{BEGIN.format(name)}{close}\n", f"{mark}{END}{close}\n"
        before, found, rest = text.partition(begin)
        assert found, f"{path.name} has no line {begin!r}"
        gap = "\n" if path.suffix == ".md" else "\n\n" if path.suffix == ".py" else ""
        text = f"{before}{begin}{gap}{make()}{gap}{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    for changed in PARTS:
        changed.write_text(file_text(changed), "utf-8")
