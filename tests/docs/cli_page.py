"""The page of the command line: each command's help. ``python -m tests.docs.cli_page`` writes it."""

import click

from aioprefetch.cli import HELP_COLUMNS_MAX
from aioprefetch.cli.app import app
from tests.repository.source_tree import ROOT

PAGE = ROOT / "docs" / "reference" / "cli.md"
HEAD = """# Command line

`pip install 'aioprefetch[cli]'`, and the extras of the stores and formats. [A guide](../guides/command-line.md) says
what all commands share. This page is the help of each command.
"""


def page_text() -> str:
    """The whole page."""
    root = click.Context(app, info_name="aioprefetch", terminal_width=HELP_COLUMNS_MAX, color=False)
    parts = [HEAD, f"```text\n{app.get_help(root)}\n```\n"]
    for name in app.list_commands(root):
        command = app.get_command(root, name)
        assert command is not None
        context = click.Context(command, root, info_name=name, terminal_width=HELP_COLUMNS_MAX)
        parts.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page_text(), "utf-8")
