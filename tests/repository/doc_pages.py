"""What the tests of the documentation read: pages, their fenced blocks, their tables, their headings."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.repository.source_tree import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NO_RUN = "# not run: "

_FENCE = re.compile(r"^(?P<marks>`{3,})(?P<info>[^`]*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block. ``line`` is the number of its first line of content; ``printed`` the ``text`` block after it."""

    page: Path
    line: int
    info: str
    content: str
    printed: str | None = None

    @property
    def where(self) -> str:
        """Page and line, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page in order. A ``text`` block right after a ``python`` one is what that one prints."""
    found: list[Block] = []
    lines = page.read_text("utf-8").splitlines()
    start, marks, info = 0, "", ""
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line.strip())
        if not marks and fence:
            start, marks, info = number + 1, fence["marks"], fence["info"].strip()
        elif marks and fence and fence["marks"] == marks and not fence["info"]:
            content = "\n".join(lines[start - 1 : number - 1])
            block = Block(page=page, line=start, info=info, content=content)
            between = "".join(lines[_end(found[-1]) : start - 2]).strip() if found else "nothing"
            if info == "text" and not between and found[-1].info == "python":
                found[-1] = Block(
                    page=page, line=found[-1].line, info="python", content=found[-1].content, printed=content
                )
            found.append(block)
            marks = ""
    assert not marks, f"{page.name}: the fence before line {start} is not closed"
    return found


def _end(block: Block) -> int:
    return block.line + block.content.count("\n") + 1


def prose_of(page: Path) -> str:
    """A page without its fenced blocks and its code spans, in which nothing is a link."""
    text = page.read_text("utf-8")
    for block in blocks_of(page):
        text = text.replace(block.content, "")
    return re.sub(r"`[^`\n]*`", "", text)


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows_under(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without the head of the table."""
    text = page.read_text("utf-8")
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"{page.name} has no heading {heading!r}"
    table: list[str] = []
    for line in rest.splitlines():
        if line.startswith("|"):
            table.append(line)
        elif table or line.startswith("#"):
            break
    assert len(table) > 2, f"{page.name} has no table under {heading!r}"
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in table[2:]]


def code(cell: str) -> str:
    """The text of a cell that is one code span."""
    assert cell.startswith("`"), f"{cell!r} is no code span"
    return cell.strip("`")
