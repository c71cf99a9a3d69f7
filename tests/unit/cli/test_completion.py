"""What shells insert at Tab, in a terminal: the words that the command then gets, and no other command runs."""

import asyncio
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from aioprefetch.cli.app import app
from aioprefetch.cli.places import SECONDS_MAX, Stores, complete_place, quoted, split_words
from aioprefetch.transfer.sides import Side
from aioprefetch.values import Entry
from tests.profile import chosen, few_rows

ROOT = Path(__file__).parents[3]
PROMPT = "READY>"
SILENT_SECONDS_MAX = 60  # Fails a test that would hang.
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i", "-C", f"function fish_prompt; printf '{PROMPT}'; end"],
}
SET_UP = {
    "bash": "source ./script",
    "zsh": "autoload -U compinit; compinit -u -D; source ./script",
    "fish": "source ./script",
}
NAMES = [
    "zz$(touch PWNED)",
    "zz`touch PWNED`",
    "zz;touch PWNED",
    "zz&touch PWNED",
    "zz|touch PWNED",
    "zz>PWNED",
    "zz a  b",
    "zz$HOME",
    "zz!!",
    "zz'a",
    'zz"a',
    "zz\\a",
    "zz*",
    "zz[a]{b,c}?",
    "zz(a)",
    "zz#a",
    "zz,a,",
    "zz~a^b",
    "zzk=v@x:y%z+",
    "zzäöü",
]

Session = Callable[[str, Sequence[str]], list[list[str]]]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Types lines into a shell that completes ``aioprefetch``, and returns the words that each line gave to it."""
    here = tmp_path / "shell"
    here.mkdir()
    words, program = here / "words", here / "aioprefetch"
    program.write_text(
        "#!/bin/sh\n"
        f'[ -n "$_AIOPREFETCH_COMPLETE" ] && PYTHONPATH="{ROOT}" exec "{sys.executable}" -m aioprefetch\n'
        f'printf "%s\\0" "$@" >> "{words}"; printf "\\n\\0" >> "{words}"\n'
    )
    program.chmod(0o700)
    for name, value in {"PATH": f"{here}:{os.environ['PATH']}", "PS1": PROMPT, "HOME": str(here)}.items():
        monkeypatch.setenv(name, value)

    def type_lines(shell: str, lines: Sequence[str]) -> list[list[str]]:
        if shutil.which(shell) is None:
            pytest.skip(f"there is no {shell}")
        environment = {"_AIOPREFETCH_COMPLETE": f"{shell}_source"}
        source = CliRunner().invoke(app, [], env=environment, prog_name="aioprefetch").output
        (here / "script").write_text(source)
        shown = typed(SHELLS[shell], [SET_UP[shell], *lines, "exit"], here)
        assert not (here / "PWNED").exists(), shown
        got = words.read_text().split("\n\0") if words.exists() else []
        return [line.split("\0")[:-1] for line in got[:-1]]

    return type_lines


def typed(shell: list[str], lines: Sequence[str], here: Path) -> str:
    """What a shell shows in a terminal where lines are typed, each at a prompt."""
    process, terminal = pty.fork()
    if not process:
        os.chdir(here)
        os.execvp(shell[0], shell)
    shown, end, left = "", 0, list(lines)
    try:
        while select.select([terminal], [], [], SILENT_SECONDS_MAX)[0]:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:
                return shown
            if not data:
                return shown
            shown += data.decode(errors="replace")
            if left and PROMPT in shown[end:]:
                end = len(shown)
                os.write(terminal, f"{left.pop(0)}\n".encode())
        pytest.fail(f"the shell does not end: {shown}")
    finally:
        os.close(terminal)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


@pytest.mark.parametrize(
    ("shell", "quote"),
    few_rows([("bash", ""), ("bash", "'"), ("zsh", '"'), ("zsh", ""), ("fish", ""), ("bash", '"')], 2),
)
def test_a_name_is_inserted_as_one_word(session: Session, tmp_path: Path, shell: str, quote: str) -> None:
    names = ["a$(touch PWNED)", "b;touch PWNED `touch PWNED`", "c'\"\\d,!!"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    lines = [f"aioprefetch cat -o a=b {quote}file://{tmp_path}/{name[0]}\t" for name in names]
    assert session(shell, lines) == [["cat", "-o", "a=b", f"file://{tmp_path}/{name}"] for name in names]


def test_bash_goes_on_behind_a_folder(session: Session, tmp_path: Path) -> None:
    """Its name is quoted already, in the way that the user chose: bash has closed the quote behind it."""
    folder = tmp_path / "d $1"
    folder.mkdir()
    (folder / "e f").write_bytes(b"")
    quotes = chosen(quick=["'"], full=["", "'", '"'])
    lines = [f"aioprefetch cat {quote}file://{tmp_path}/d\te\t" for quote in quotes]
    assert session("bash", lines) == [["cat", f"file://{folder}/e f"]] * len(quotes)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_bash_reads_what_is_quoted_as_it_was(quote: str) -> None:
    for name in NAMES:
        written = quoted(name, quote)
        whole = f"{quote}{written}" + (quote if not written.endswith(quote or " ") else "")
        read = subprocess.run(["bash", "--norc", "-c", f"printf %s {whole}"], capture_output=True, text=True)
        assert read.stdout == name
        assert split_words(f"cat {whole}") == (["cat", name], "")


def test_words_that_are_not_at_their_end() -> None:
    assert split_words("") == ([""], "")
    assert split_words("a  b ") == (["a", "b", ""], "")
    assert split_words("a 'b c") == (["a", "b c"], "'")
    assert split_words('a "b\\c\\$') == (["a", "b\\c$"], '"')
    assert split_words("a b\\") == (["a", "b"], "")


def test_a_store_that_does_not_respond_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the name of a bucket, where all buckets are asked for; it is not asked for its objects as well."""

    async def hang(*arguments: object) -> list[str]:
        await asyncio.Event().wait()
        return []

    limits: list[float | None] = []
    buckets_of = Stores.buckets_of

    def soon(stores: Stores, side: Side, seconds_max: float | None = None) -> list[Entry]:
        limits.append(seconds_max)
        return buckets_of(stores, side, 0.01)

    def unasked(*arguments: object) -> None:
        pytest.fail("the store is asked again")

    monkeypatch.setattr("aioprefetch.services.s3.accessor.Buckets.names", hang)
    monkeypatch.setattr("aioprefetch.cli.places.list_literally", unasked)
    monkeypatch.setattr(Stores, "buckets_of", soon)
    for place in ("s3://", "s3://bucket"):
        assert complete_place(click.Context(app), app.params[0], place) == []
    assert limits == [SECONDS_MAX] * 2


def test_no_bucket_with_a_name_that_cannot_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def names(*arguments: object) -> list[str]:
        return ["bucket\nplain,other", "bucket"]

    monkeypatch.setattr("aioprefetch.services.s3.accessor.Buckets.names", names)
    items = complete_place(click.Context(app), app.params[0], "s3://buck")
    assert [item.value for item in items] == ["s3://bucket/"]
