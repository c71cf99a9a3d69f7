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
from typing import Any, NoReturn

import click
from click.shell_completion import add_completion_class

from aioprefetch.cli import CLEAN_UP_SECONDS, EXIT_BROKEN_PIPE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from aioprefetch.cli.places import HELP_COLUMNS_MAX, UrlBashComplete, WholeNamesFishComplete
from aioprefetch.cli.printing import note, note_failure
from aioprefetch.errors import InvalidArgument, MissingDependency, printable, redact

# How long an interrupted command may clean up, if it does not say so.
CLEAN_UP_SECONDS_MAX = 0.7

# The module of each command, in the order of the help.
COMMANDS = {
    **dict.fromkeys(("ls", "stat", "du"), "reading"),
    "cat": "reading",
    **dict.fromkeys(("cp", "sync"), "transfer"),
    **dict.fromkeys(("mv", "rm"), "removing"),
    "presign": "reading",
    "head": "inspecting",
    "scan": "inspecting",
    "plan": "inspecting",
    "doctor": "doctor",
    "trace": "trace",
    "demo": "demo",
}

add_completion_class(UrlBashComplete)
add_completion_class(WholeNamesFishComplete)


class Commands(click.Group):
    """The commands, of which a process loads the one that it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, ``None`` if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"aioprefetch.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first argument. ``click.UsageError`` with the nearest name if there is none."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            if not near:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near[0]}?", ctx) from None

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
            note_failure(error)
            code = EXIT_USAGE if _is_usage(error) else EXIT_FAILED
        _give_up_output()
        raise click.exceptions.Exit(code)


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
        note(_line_of_usage(error))
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
    """Let Ctrl-C end the process with its exit code while it waits for threads, since the command is over."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(code))
