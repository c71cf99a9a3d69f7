"""The line of the program that a request is for, while a recording wants to know it.

It is the innermost line that is neither this library's, nor Python's, nor of an installed package. Tasks and threads
of ours get it with their context (``entering``). A task of the program that runs one of our coroutines and nothing else
has the line that made the coroutine. On a thread of another library, such as Arrow, it is the line at which
the main thread is, or the only other thread that runs the program. Where all code is installed, an installed line.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from asyncio import events
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from types import FrameType

# The recordings that want to know it: empty, nothing else here runs.
wanting: set[object] = set()

# How many frames of its creator each coroutine remembers; one more costs a read a microsecond or two.
ORIGIN_FRAMES = 1
_carried: ContextVar[str] = ContextVar("aioprefetch_caller", default="")

_PROGRAM, _INSTALLED, _LOOP, _SKIPPED = "program", "installed", "loop", "skipped"
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep
_kinds = {str(events.__file__): _LOOP}  # By the names of files; there the callbacks of a loop are called.
_RUN_FOREVER, _RUN = asyncio.BaseEventLoop.run_forever.__code__, asyncio.Runner.run.__code__


def want() -> Callable[[], None]:
    """Find lines from now on; the function returned ends that. Call both on the thread whose tasks are of interest."""
    token = object()
    wanting.add(token)
    if not sys.get_coroutine_origin_tracking_depth():
        sys.set_coroutine_origin_tracking_depth(ORIGIN_FRAMES)

    def end() -> None:
        wanting.discard(token)
        if not wanting and sys.get_coroutine_origin_tracking_depth() == ORIGIN_FRAMES:
            sys.set_coroutine_origin_tracking_depth(0)

    return end


def entering() -> Context | None:
    """The context for work of ours that begins here and runs elsewhere; ``None`` for any while no line is wanted."""
    if not wanting:
        return None
    context = copy_context()
    context.run(_carried.set, line())
    return context


def line() -> str:
    """The line that the running code is for, as ``FILE:LINE``; empty where it is not known."""
    carried, running = _carried.get(), None
    if asyncio._get_running_loop() is not None and (task := asyncio.current_task()) is not None:
        running = task.get_coro()
        code = getattr(running, "cr_code", None)
        if carried and code is not None and _kinds.get(code.co_filename) is _SKIPPED:
            return carried  # A task of ours: the program is not on its stack, and a walk costs microseconds.
    found, beyond_loop, installed = _line_in(sys._getframe())
    origin = getattr(running, "cr_origin", None) or ()
    made = (f"{file}:{number}" for file, number, _ in origin if _kind(file) is _PROGRAM)
    return found or next(made, carried) or beyond_loop or _line_elsewhere() or installed


def _line_in(frame: FrameType | None) -> tuple[str, str, str]:
    """The innermost line of the program; else the lines that run the event loop, and in an installed package."""
    installed, is_beyond = "", False
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename) or _kind(code.co_filename)
        if kind is _PROGRAM:
            text = f"{code.co_filename}:{frame.f_lineno}"
            return ("", text, installed) if is_beyond else (text, "", installed)
        if kind is _LOOP or code is _RUN_FOREVER or code is _RUN:
            is_beyond = True
        elif kind is _INSTALLED and not installed and not is_beyond:
            installed = f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "", "", installed


def _line_elsewhere() -> str:
    """The line of the program at which the main thread is; else the only other thread that is, idle ones last."""
    frames = sys._current_frames()
    del frames[threading.get_ident()]
    if found := _line_in(frames.pop(threading.main_thread().ident or 0, None))[0]:
        return found
    others: dict[bool, list[str]] = {True: [], False: []}  # By whether they work, or wait in Python's own code.
    for frame in frames.values():
        found, _, installed = _line_in(frame)
        if found:
            others[bool(installed) or _kinds[frame.f_code.co_filename] is not _SKIPPED].append(found)
    likely = others[True] or others[False]
    return likely[0] if len(likely) == 1 else ""


def _kind(file: str) -> str:
    is_installed = f"{os.sep}site-packages{os.sep}" in file or f"{os.sep}dist-packages{os.sep}" in file
    is_python = file.startswith((_PYTHON, "<frozen ")) and not is_installed
    is_skipped = is_python or file.startswith(_OURS)
    kind = _kinds[file] = _SKIPPED if is_skipped else _INSTALLED if is_installed else _PROGRAM
    return kind
