"""The spool: whole lines of processes that may be killed at any time, and one page of all of them."""

import json
import os
from pathlib import Path
from typing import Any

from aioprefetch.trace.spool import Spool, merged
from tests.unit.trace.recordings import Script


def facts(at: float = 0.0, number: int = 0) -> dict[str, Any]:
    """One request that took 20 ms, by its number in its process."""
    script = Script()
    script.request("k", 0, 100, at=at)
    found = script.recording().take_out()
    assert found is not None
    ((_, *values),) = found["requests"]
    return found | {"requests": [(number, *values)]}


def requests_in(page: Path) -> int:
    """The number of requests of a trace for Chrome."""
    return sum("bytes" in event.get("args", {}) for event in json.loads(page.read_text("utf-8"))["traceEvents"])


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    spool = Spool(f"{tmp_path}/t.json.spool", is_root=True)
    spool.append("job", facts())
    (file,) = Path(spool.folder).iterdir()
    with file.open("ab") as torn:
        torn.write(file.read_bytes()[:-20])
    assert len(merged(spool.folder).requests) == 1
    assert merged(spool.folder).processes == {f"job {os.getpid()}": "is running"}
    spool.close()
    assert merged(spool.folder).processes == {f"job {os.getpid()}": "was killed"}


def test_a_process_that_outlives_the_root_writes_the_page_again(tmp_path: Path) -> None:
    page = tmp_path / "t.json"
    root = Spool(f"{page}.spool", is_root=True)
    child, idle = Spool(root.folder, is_root=False), Spool(root.folder, is_root=False)
    root.append("root", facts())
    child.append("child", facts(0.1))
    assert root.end(str(page))
    assert requests_in(page) == 2
    child.append("child", facts(0.2, number=1))
    assert child.end(str(page))
    assert requests_in(page) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    idle.close()


def test_a_root_drops_what_the_dead_have_left(tmp_path: Path) -> None:
    """Unless it is there to write it; and not of a process that lives."""
    page = tmp_path / "t.json"
    before = Spool(f"{page}.spool", is_root=True)
    before.append("before", facts())
    beside = Spool(before.folder, is_root=True)
    assert len(merged(before.folder).requests) == 1
    beside.close()
    before.close()
    Spool(before.folder, is_root=True, keeps=True).close()
    assert len(merged(before.folder).requests) == 1
    after = Spool(before.folder, is_root=True)
    assert merged(before.folder).requests == []
    assert not after.end(str(page))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_the_program_has_closed_is_opened_again(tmp_path: Path) -> None:
    """As a program does that becomes a daemon; the number may be that of a file of its own by then."""
    spool = Spool(f"{tmp_path}/t.json.spool", is_root=True)
    (file,) = Path(spool.folder).iterdir()
    (number,) = (int(fd.name) for fd in Path("/dev/fd").iterdir() if Path(f"/dev/fd/{fd.name}").resolve() == file)
    own = os.open(tmp_path / "own", os.O_WRONLY | os.O_CREAT)
    os.dup2(own, number)
    os.close(own)
    spool.append("job", facts())
    assert (tmp_path / "own").read_bytes() == b""
    assert len(merged(spool.folder).requests) == 1
    os.close(number)
    spool.close()
