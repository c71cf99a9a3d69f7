"""Links into the repository resolve, to the heading; no page is out of reach."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.repository.doc_pages import PAGES, anchors_of, prose_of
from tests.repository.source_tree import ROOT

LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def links_inside(page: Path) -> Iterator[tuple[Path, str]]:
    """The files of the repository that a page links to, with the anchor or an empty one."""
    for target in LINK.findall(prose_of(page)):
        name, _, anchor = target.partition("#")
        if not re.match(r"[a-z]+:", target):
            yield (page.parent / name).resolve() if name else page, anchor


def is_broken(_: Path, target: Path, anchor: str) -> bool:
    """Whether a link leads to no file of the repository, or to no heading in it."""
    return not (target.exists() and target.is_relative_to(ROOT)) or bool(anchor and anchor not in anchors_of(target))


def test_links_resolve() -> None:
    """Each names a file of the repository, and a heading in it."""
    links = [(page, target, anchor) for page in PAGES for target, anchor in links_inside(page)]
    assert [f"{link[0].name} links to {link[1]}#{link[2]}" for link in links if is_broken(*link)] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    """By links alone."""
    seen, todo = {PAGES[0]}, [PAGES[0]]
    while todo:
        for target, _ in links_inside(todo.pop()):
            if target.suffix == ".md" and target not in seen:
                seen.add(target)
                todo.append(target)
    assert [page.relative_to(ROOT).as_posix() for page in PAGES if page not in seen] == []
