"""The command line: ``aioprefetch demo``, ``stat``, ``cat`` and ``ls``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from aioprefetch.cli.commands import cat, ls, stat
from aioprefetch.cli.demo import run_demo
from aioprefetch.errors import Error

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130  # as shells report a process that was ended by SIGINT
EXIT_BROKEN_PIPE = 141  # as shells report SIGPIPE

ROW_GROUPS_MAX = 50

Command = Callable[[argparse.Namespace, dict[str, Any]], int]

# The options of `Operator.from_uri` on the command line. Secrets are not among them: command lines are public.
_STORE_OPTIONS = ("endpoint_url", "region", "profile", "anonymous", "addressing_style", "ca_bundle")


_URLS = {"ls": "such as s3://bucket/prefix/ or, with * ? [a-z] and **, 's3://bucket/*.parquet'"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: success; 1: the demo failed, or the listing is empty; 2: an error, with a message on standard error.
    """
    arguments = _parser().parse_args(argv)
    values = {name: getattr(arguments, name, None) for name in _STORE_OPTIONS}
    options = {name: value for name, value in values.items() if value is not None}
    command: Command = arguments.command
    try:
        return command(arguments, options)
    except Error as error:
        print(f"aioprefetch: {error}", file=sys.stderr)
        return EXIT_ERROR
    except BrokenPipeError:
        # The reader of our output has closed it (`| head`). Python would fail when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aioprefetch",
        description="Read bytes from object storage with few requests.",
        epilog="Credentials come from where AWS tools look for them, or from AIOPREFETCH_* variables.",
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    store = _store_options()

    demo = commands.add_parser("demo", parents=[store], help="compare pyarrow on a naive reader and on ours")
    demo.add_argument("url", nargs="?", metavar="URL", help="a Parquet object (default: one in an embedded S3 server)")
    demo.add_argument(
        "--row-groups", type=_positive, metavar="N", default=ROW_GROUPS_MAX, help="read at most N (default: 50)"
    )
    demo.add_argument("--json", action="store_true", help="print only the numbers, as one JSON object")
    demo.set_defaults(command=_demo)

    for name, command, text in (
        ("stat", lambda a, options: stat(a.url, options), "show size, ETag and time of an object"),
        ("cat", lambda a, options: cat(a.url, options), "write an object to standard output"),
        ("ls", lambda a, options: ls(a.url, options, recursive=a.recursive), "list objects, also by a pattern"),
    ):
        subparser = commands.add_parser(name, parents=[store], help=text)
        subparser.add_argument("url", metavar="URL", help=_URLS.get(name, "such as s3://bucket/key or file:///path"))
        subparser.set_defaults(command=command)
        if name == "ls":
            subparser.add_argument("-r", "--recursive", action="store_true", help="also what lies in directories")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def _version() -> str:
    try:
        return f"aioprefetch {version('aioprefetch')}"
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "aioprefetch (not installed)"


def _store_options() -> argparse.ArgumentParser:
    store = argparse.ArgumentParser(add_help=False)
    group = store.add_argument_group("the store")
    group.add_argument("--endpoint-url", metavar="URL", help="the address of the store, if not AWS")
    group.add_argument("--region", help="the region of the bucket")
    group.add_argument("--profile", help="the AWS profile to take credentials from")
    group.add_argument("--anonymous", action="store_true", default=None, help="send no credentials")
    group.add_argument("--addressing-style", choices=("auto", "path", "virtual"), help="how URLs name the bucket")
    group.add_argument("--ca-bundle", metavar="FILE", help="certificates to trust")
    return store


def _demo(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    return run_demo(arguments.url, options, row_groups_max=arguments.row_groups, as_json=arguments.json)


__all__ = ["main"]
