"""What mkdocs does not do by itself: a page for each public name, links into the repository, ``llms.txt``.

The pages of names are made from the source without importing it: one for each verb of the classes that people hold, one
for each name of a room, in the order in which the source has them. A verb of ``Operator`` with a page in ``docs/verbs``
has its signature there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.nav import Navigation, Section
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
PACKAGE = ROOT / "aioprefetch"
FOLDER = "reference/api"
VERBS = "verbs"

# Classes with a page for each verb: the public name, and the file.
CLASSES = {
    "Operator": "operator/operator.py",
    "RangeReader": "reader/reader.py",
    "Path": "path.py",
    "sync.BlockingOperator": "sync/blocking_operator.py",
}
# Rooms with a page for each name in their ``__all__``.
ROOMS = (
    "sync",
    "parquet",
    "lance",
    "arrow",
    "fsspec",
    "polars",
    "zarr",
    "obspec",
    "asgi",
    "progress",
    "trace",
    "otel",
    "prometheus",
    "spark",
    "services",
    "layers",
)
VALUES = ("Metadata", "Entry", "Capability", "ServiceInfo", "DiskCache", "StatisticsSnapshot", "BatchScan", "ScanFile")
FUNCTIONS = ("copy", "CopyReport", "CopyFailure", "CopyStep", "CopyProgress")
PROTOCOLS = ("Accessor", "Layer", "Service", "WrappedAccessor", "ReadRequest", "ReadHead", "ReadReply")

# What people look for most comes first among the results of a search; what names and figures fill comes last.
BOOSTS = {
    "start/": 4,
    "guides/": 2,
    "verbs/": 3,
    "reference/options.md": 2,
    "reference/errors.md": 2,
    "reference/api/": 0.5,
    "decisions/": 0.5,
    "maps/": 0.7,
}
# Other verbs on the page of one.
BESIDE = {"read_ranges": ("view_ranges",)}

# Where a page of a name leads on: its longest prefix here decides.
NEXT = {
    "Operator": "start/quickstart.md",
    "Operator.from_uri": "reference/options.md",
    "Operator.layer": "concepts/layers.md",
    "Operator.statistics": "reference/statistics.md",
    "Operator.events": "reference/events.md",
    "Operator.capability": "reference/services.md",
    "Operator.aclose": "concepts/cancellation.md",
    "Path": "guides/paths.md",
    "RangeReader": "concepts/prefetching.md",
    "RangeReader.statistics": "reference/statistics.md",
    "RangeReader.reopen": "concepts/consistency.md",
    "sync": "start/quickstart.md",
    "sync.BlockingOperator": "guides/notebooks.md",
    "sync.copy": "guides/transfers.md",
    "sync.open": "guides/writing.md",
    "parquet": "guides/scans.md",
    "lance": "guides/scans.md",
    "progress": "guides/transfers.md",
    "trace": "guides/tracing.md",
    "otel": "guides/observing.md",
    "prometheus": "guides/observing.md",
    "services": "reference/services.md",
    "layers": "concepts/layers.md",
    "arrow": "guides/arrow.md",
    "fsspec": "guides/fsspec.md",
    "polars": "guides/polars.md",
    "zarr": "guides/zarr.md",
    "obspec": "guides/obspec.md",
    "asgi": "guides/asgi.md",
    "spark": "guides/spark.md",
}

FIGURE = re.compile(r"^!\[(?P<text>[^\]]+)\]\((?P<path>figures/[\w-]+\.svg)\)$", re.MULTILINE)
STYLE = re.compile(r"<style>.*?</style>\n?", re.DOTALL)  # A picture follows the scheme of the system by itself.
LINK = re.compile(r"(?<=\]\()(?P<up>(?:\.\./)+)(?P<path>[^)\s#]+)")


def public_members(path: str, name: str) -> list[str]:
    """The methods and properties of a class, in the order of its source."""
    tree = ast.parse((PACKAGE / path).read_text("utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    methods = [node.name for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [method for method in dict.fromkeys(methods) if not method.startswith("_")]


def public_names(room: str) -> dict[str, str]:
    """The names of a room, and where each can be found: a submodule of the same name would hide it."""
    folder = PACKAGE / room
    path = folder / "__init__.py" if folder.is_dir() else PACKAGE / f"{room}.py"
    tree = ast.parse(path.read_text("utf-8"))
    names: list[str] = []
    homes: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            names = ast.literal_eval(node.value)
        elif isinstance(node, ast.ImportFrom):
            homes |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    hidden = {name for name in names if (folder / f"{name}.py").exists()}
    return {name: homes[name] if name in hidden else f"aioprefetch.{room}.{name}" for name in names}


def generated() -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """The sections of the pages of names: title, folder, and the heading and identifier of each page."""
    for name, path in CLASSES.items():
        members = public_members(path, name.rpartition(".")[2])
        if name == "Operator":
            members = [member for member in members if member not in verbs_with_a_page()]
        yield name, name, [(member, f"aioprefetch.{name}.{member}") for member in members]
    for room in ROOMS:
        names = [item for item in public_names(room).items() if f"{room}.{item[0]}" not in CLASSES]
        if names:
            yield room, room, names


def verbs_with_a_page() -> set[str]:
    """The verbs of ``Operator`` whose signature stands on a page in ``docs/verbs``."""
    written = {path.stem for path in (DOCS / VERBS).glob("*.md")}
    return written.union(*(BESIDE.get(verb, ()) for verb in written))


def signatures(verb: str) -> str:
    """The end of the page of a verb: its signature, parameters and errors, from the source."""
    return "\n## Signature\n" + "".join(
        f"\n::: aioprefetch.Operator.{name}\n    options:\n      heading: ap.Operator.{name}\n      heading_level: 3\n"
        for name in (verb, *BESIDE.get(verb, ()))
    )


def page_of(public: str, identifier: str) -> str:
    """The text of the page of one name."""
    title = public.rpartition(".")[2]
    head = f"---\ntitle: ap.{public}\npublic: aioprefetch.{public}\nidentifier: {identifier}\n---\n"
    return f"{head}\n::: {identifier}\n    options:\n      heading: ap.{public}\n      toc_label: {title}\n"


def leads_on(public: str) -> str:
    """The last line of the page of a name: a link to the page that shows it in use.

    A blocking verb leads where its twin does.
    """
    verb = public.replace("sync.BlockingOperator.", "Operator.")
    prefix = max((name for name in NEXT if f"{verb}.".startswith(f"{name}.")), key=len)
    page = f"{VERBS}/{verb.rpartition('.')[2]}.md"
    target = page if verb.startswith("Operator.") and (DOCS / page).exists() else NEXT[prefix]
    heading = re.search(r"^# (.+)$", (DOCS / target).read_text("utf-8"), re.MULTILINE)
    up = "../" * (FOLDER.count("/") + 2)
    return f"\nIn use: [{heading[1] if heading else target}]({up}{target})\n"


def list_of(title: str, names: tuple[str, ...]) -> str:
    """The text of a page with several names of the package."""
    options = 'heading_level: 2\n      filters: ["!^_", "!Fields$"]'  # Fields of errors are for type checkers.
    body = "".join(
        f"\n::: aioprefetch.{name}\n    options:\n      heading: ap.{name}\n      {options}\n" for name in names
    )
    return f"# {title}\n{body}"


def own_pages() -> tuple[dict[str, str], list[dict[str, object]]]:
    """The pages of names by their path, and their part of the navigation."""
    pages: dict[str, str] = {}
    navigation: list[dict[str, object]] = []
    for title, folder, names in generated():
        entries: list[dict[str, object]] = []
        for name, identifier in names:
            path = f"{FOLDER}/{folder}/{name}.md"
            pages[path] = page_of(f"{title}.{name}", identifier) + leads_on(f"{title}.{name}")
            entries.append({name: path})
        if title in CLASSES:
            path = f"{FOLDER}/{folder}/index.md"
            pages[path] = page_of(title, f"aioprefetch.{title}") + "      members: false\n" + leads_on(title)
            entries.insert(0, {title: path})
        navigation.append({f"ap.{title}": entries})
    lists = (
        ("ap.copy", "copy", FUNCTIONS),
        ("Values", "values", VALUES),
        ("Protocols", "protocols", PROTOCOLS),
        ("Error classes", "errors", ("errors",)),
    )
    for title, name, names_of_list in lists:
        path = f"{FOLDER}/{name}.md"
        pages[path] = list_of(title, names_of_list)
        navigation.append({title: path})
    return pages, navigation


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of names, and the decisions, into the navigation."""
    sections = {title: part for entry in config.nav or [] if isinstance(entry, dict) for title, part in entry.items()}
    sections["Reference"].append({"API": own_pages()[1]})
    decisions = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "decisions").glob("*.md"))
    sections["Why"].append({"Decisions": decisions})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of names."""
    for path, text in own_pages()[0].items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of the documentation into the repository, and show blocks that are not run as Python.

    Figures are put into the page, where they have the colours of its text: as pictures they would not follow the switch
    between light and dark.
    """
    uri = page.file.src_uri
    here = (DOCS / uri).parent
    page.meta["search"] = {"boost": next((boost for start, boost in BOOSTS.items() if uri.startswith(start)), 1)}
    if uri.startswith(f"{VERBS}/"):
        markdown += signatures(here.joinpath(uri).stem)
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # There is nothing beside it. GitHub would show a header of the page itself.

    def target(match: re.Match[str]) -> str:
        path = (here / match[0]).resolve()
        if path.is_relative_to(DOCS) or not path.exists():
            return match[0]
        kind = "tree" if path.is_dir() else "blob"
        return f"{config.repo_url}/{kind}/main/{path.relative_to(ROOT).as_posix()}"

    def figure(match: re.Match[str]) -> str:
        drawing = STYLE.sub("", (here / match["path"]).read_text("utf-8").strip())
        labelled = drawing.replace("<svg ", f'<svg role="img" aria-label="{match["text"]}" ', 1)
        return f'<figure class="drawing">{labelled}</figure>'

    markdown = FIGURE.sub(figure, markdown)
    return LINK.sub(target, markdown).replace("```python no-run\n", "```python\n")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let other sites link to a name by its public path where the page was made from another one."""
    public, identifier = page.meta.get("public"), page.meta.get("identifier")
    if public != identifier:
        uri = f"{page.url}#{identifier}"
        config.plugins["mkdocstrings"].handlers.inventory.register(public, "py", "function", uri)
    return html


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Remember the navigation for ``llms.txt``."""
    config.extra["navigation"] = nav
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write ``llms.txt``: every page with its address, by section, for programs that read."""
    nav: Navigation = config.extra["navigation"]
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for item in nav.items:
        lines += [f"## {item.title}", "", *links_of(item, config.site_url or ""), ""]
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines), "utf-8")


def links_of(item: Page | Section | object, address: str) -> list[str]:
    """A line for each page below an item of the navigation."""
    if children := getattr(item, "children", None):
        return [line for child in children for line in links_of(child, address)]
    file = getattr(item, "file", None)
    if file is None:
        return []
    title = getattr(item, "meta", {}).get("title") or getattr(item, "title", "")
    return [f"- [{title}]({address}{file.url.removeprefix('./')})"]
