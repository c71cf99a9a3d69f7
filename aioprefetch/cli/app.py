"""The group of all commands: each loads at its use; how failures, interruptions and closed pipes end the process."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn, cast

import click
from click.shell_completion import CompletionItem

from aioprefetch.cli import (
    CLEAN_UP_SECONDS,
    EXIT_BROKEN_PIPE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    HELP_COLUMNS_MAX,
)
from aioprefetch.errors import InvalidArgument, MissingDependency, printable, redact

# How long an interrupted command may clean up, if it does not say so.
CLEAN_UP_SECONDS_MAX = 0.7

# The module of each command, and its line in the help, in that order. The help and the completion of names load none.
COMMANDS = {
    "ls": ("reading", "List objects and directories."),
    "stat": ("reading", "Show size, ETag, version, time and type of objects."),
    "du": ("reading", "Add up the sizes of objects: bytes, number of objects, place."),
    "cat": ("reading", "Write objects to standard output, one after the other."),
    "cp": ("transfer", "Copy objects and directories between stores."),
    "sync": ("transfer", "Copy what is new or has changed below SRC."),
    "mv": ("removing", "Move an object or a directory within one store."),
    "rm": ("removing", "Remove objects, what patterns match, and directories."),
    "presign": ("reading", "Print a URL for each object, to read it without keys."),
    "head": ("inspecting", "Show schema, row groups and first rows of a file."),
    "scan": ("inspecting", "Write rows as JSON lines, CSV or Arrow."),
    "plan": ("inspecting", "Show the requests that a read would make, and what they cost."),
    "doctor": ("doctor", "Check a store, and derive settings for it."),
    "trace": ("trace", "Run a Python program and write the picture of what it reads."),
    "demo": ("demo", "Compare pyarrow on a naive reader and on ours."),
}


class Commands(click.Group):
    """The commands. A process loads only the one it runs."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command line, or complete one."""
        if "_AIOPREFETCH_COMPLETE" in os.environ:
            importlib.import_module("aioprefetch.cli.places")  # It knows the shells.
        return super().main(*args, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with a name, or ``None``."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"aioprefetch.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The lines of all commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names and options that begin with a text."""
        begun = [name for name in COMMANDS if name.startswith(incomplete)]
        names = [CompletionItem(name, help=COMMANDS[name][1]) for name in begun]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first argument. ``click.UsageError`` with what does it, or the nearest name, without."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            name = args[0]
            answer = _answer(name, "COMMAND_ANSWERS")
            answers = [f": aioprefetch {answer} does it"] if answer else []
            answers += [f". Did you mean {near}?" for near in difflib.get_close_matches(name, COMMANDS, 1)]
            if name in ("mb", "mkdir", "rb", "rmdir", "touch"):
                answers = [": the tool of the store makes and removes buckets; directories come and go with objects"]
            if not answers:
                raise
            raise click.UsageError(f"No such command {name!r}{answers[0]}", ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what it returns is the exit code, and so is how it fails."""
        try:
            code = super().invoke(ctx) or 0
            sys.stdout.flush()
        except BrokenPipeError:
            code = EXIT_BROKEN_PIPE
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            importlib.import_module("aioprefetch.cli.printing").note_failure(error)
            code = EXIT_USAGE if _is_usage(error) else EXIT_FAILED
        _give_up_output()
        raise click.exceptions.Exit(code)


def _answer(name: str, table: str) -> str | None:
    tables = importlib.import_module("aioprefetch.cli.other_tools")
    return cast("str | None", tables.ours(name, getattr(tables, table)))


def _is_usage(error: Exception) -> bool:
    return isinstance(error, InvalidArgument | MissingDependency)


def _give_up_output() -> None:
    """Drop what cannot be written, to a pipe that is closed (``| head``) or a full disk: Python would fail at exit."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    "aioprefetch",
    cls=Commands,
    context_settings={"max_content_width": HELP_COLUMNS_MAX},
    epilog="\b\nA PLACE is a URL (s3://bucket/key, gs://, az://, https://, file://, memory://) or a local path;"
    "\nit may be a pattern: 's3://bucket/**/*.parquet'. Credentials come from where the tools of each store"
    "\nlook for them, or from AIOPREFETCH_* variables."
    '\n\n\b\nCompletion: eval "$(_AIOPREFETCH_COMPLETE=bash_source aioprefetch)", or zsh_source, fish_source.',
)
@click.version_option(sys.modules["aioprefetch"].__version__, prog_name="aioprefetch", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def app(context: click.Context, debug: bool) -> None:
    """List, read, copy and inspect objects in any store, with few requests."""
    context.meta["aioprefetch.debug"] = debug


def run_command(argv: Sequence[str] | None) -> int:
    """Run the command of ``argv``, or of the process; its exit code."""
    if argv is None:
        _end_soon_when_interrupted()
    code = EXIT_INTERRUPTED
    try:
        code = int(app.main(argv, prog_name="aioprefetch", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = error.exit_code
    except click.ClickException as error:
        click.echo(f"aioprefetch: {_line_of_usage(error)}", err=True)
        code = error.exit_code
    except click.Abort:
        pass
    finally:
        if argv is None:
            _end_at_once_when_interrupted(code)
    return code


def _line_of_usage(error: click.ClickException) -> str:
    """The error of arguments on one line, with the command that shows their help."""
    message = printable(redact(error.format_message())).removesuffix(".")
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption):
        answer = _answer(error.option_name, "OPTION_ANSWERS")
        if context and context.command is app:
            answer = "options of a store come after the command: ls --region NAME PLACE"
        message = f"{error.message.removesuffix('.')}: {answer}" if answer else message
    return f"{message}; hint: {context.command_path if context else 'aioprefetch'} --help"


def _end_soon_when_interrupted() -> None:
    """Let Ctrl-C end the process within a second, or the time of its command, in which it cleans up.

    What was written appears whole or not at all either way. A second Ctrl-C ends the process at once.
    """

    def leave() -> NoReturn:
        if sys.stderr.isatty():
            sys.stderr.write("\x1b[?25h")  # A progress bar hides the cursor.
        sys.stderr.write("aioprefetch: ended before all was closed; parts of an upload may be left in the store\n")
        sys.stderr.flush()
        os._exit(EXIT_INTERRUPTED)

    def interrupted(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, lambda number, frame: leave())
        context = click.get_current_context(silent=True)
        seconds = context.meta.get(CLEAN_UP_SECONDS, CLEAN_UP_SECONDS_MAX) if context else CLEAN_UP_SECONDS_MAX
        timer = threading.Timer(seconds, leave)
        timer.daemon = True
        timer.start()
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupted)


def _end_at_once_when_interrupted(code: int) -> None:
    """Let Ctrl-C end the process with its exit code while it waits for threads, since the command has ended."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(code))
