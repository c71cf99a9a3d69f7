"""The verbs of fsspec on a bucket, by s3fs and by us: the same steps, the same results, the same objects.

Differences that are meant stand in one table of the guide, and here.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import s3fs
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from aioprefetch.fsspec import S3FileSystem
from aioprefetch.testing import CountingS3Server
from tests.profile import chosen

STEPS = 40
SEEDS = chosen(quick=range(2), full=range(6))
FILES = ["d/a", "d/b", "d/e/c", "d/e/f/g", "d/a.txt", "d2/a", "f", "g/h ä"]
DIRECTORIES = ["d", "d/e", "d/e/f", "d2", "g", "nothing"]
GLOBS = ["*", "d*", "**", "d/**", "d/*", "?", "**/c", "d/e*", "d/**/g", "{d,f}*", "*/a*", "[df]", "d?/", "none*"]

Step = tuple[str, Callable[[Any, str], object]]


def reading(random: Random) -> Step:
    """A step that changes nothing."""
    path, other, glob = random.choice(FILES + DIRECTORIES), random.choice(FILES), random.choice(GLOBS)
    slash, flag = random.choice(["", "/"]), random.random() < 0.5
    depth = random.choice([None, None, 1, 2])
    start, end = random.choice([(None, None), (1, None), (0, 2), (1, 50), (0, -1)])
    steps: dict[str, Callable[[Any, str], object]] = {
        f"ls {path}{slash} {flag}": lambda fs, at: in_order(fs.ls(f"{at}/{path}{slash}", detail=flag)),
        f"ls of all {flag}": lambda fs, at: in_order(fs.ls(at, detail=flag)),
        f"find {path} {depth} {flag}": lambda fs, at: fs.find(f"{at}/{path}", maxdepth=depth, withdirs=flag),
        f"find with details {depth} {flag}": lambda fs, at: fs.find(at, maxdepth=depth, withdirs=flag, detail=True),
        f"walk {path} {depth}": lambda fs, at: walked(fs, f"{at}/{path}", depth),
        f"walk all {depth}": lambda fs, at: walked(fs, at, depth),
        f"du {path} {flag} {depth}": lambda fs, at: fs.du(f"{at}/{path}", total=flag, maxdepth=depth),
        f"glob {glob} {flag} {depth}": lambda fs, at: fs.glob(f"{at}/{glob}", detail=flag, maxdepth=depth),
        f"expand {path} {flag}": lambda fs, at: fs.expand_path(f"{at}/{path}", recursive=flag),
        f"expand {glob} {flag}": lambda fs, at: fs.expand_path(f"{at}/{glob}", recursive=flag, maxdepth=depth),
        f"info {path}{slash}": lambda fs, at: fs.info(f"{at}/{path}{slash}"),
        f"questions {path}{slash}": lambda fs, at: [
            question(f"{at}/{path}{slash}") for question in (fs.exists, fs.isdir, fs.isfile, fs.lexists)
        ],
        f"size {other}": lambda fs, at: fs.size(f"{at}/{other}"),
        f"times {path}": lambda fs, at: type(fs.modified(f"{at}/{path}")),
        f"cat {path} {flag}": lambda fs, at: fs.cat(f"{at}/{path}", recursive=flag),
        f"cat {glob}": lambda fs, at: fs.cat(f"{at}/{glob}", on_error="omit"),
        f"cat_file {other} {start} {end}": lambda fs, at: fs.cat_file(f"{at}/{other}", start=start, end=end),
        f"cat_ranges {other}": lambda fs, at: fs.cat_ranges([f"{at}/{other}", f"{at}/d/a"], [0, 0], [3, 1]),
        f"head and tail {other}": lambda fs, at: (fs.head(f"{at}/{other}", 2), fs.tail(f"{at}/{other}", 2)),
        f"read_block {other} {flag}": lambda fs, at: fs.read_block(f"{at}/{other}", 1, 2, b"b" if flag else None),
        f"read_text {other}": lambda fs, at: fs.read_text(f"{at}/{other}", encoding="latin-1"),
        f"open {other}": lambda fs, at: read_in_pieces(fs, f"{at}/{other}"),
        f"get {path}{slash} {flag} {depth}": lambda fs, at: got(fs, f"{at}/{path}{slash}", flag, depth),
        f"get {glob} {flag}": lambda fs, at: got(fs, f"{at}/{glob}", flag, None),
        f"mapper {path}": lambda fs, at: dict(fs.get_mapper(f"{at}/{path}")),
        "forget": lambda fs, at: fs.invalidate_cache(),
    }
    return random.choice(list(steps.items()))


def writing(random: Random) -> Step:
    """A step that changes objects."""
    path, target = random.choice(FILES + DIRECTORIES), random.choice(["new", "new/x", "d/copied", "d", "more"])
    file, other, glob = random.choice(FILES), random.choice(FILES), random.choice(GLOBS)
    slash, flag = random.choice(["", "/"]), random.random() < 0.5
    depth = random.choice([None, 1, 2]) if flag else None
    data = bytes([random.randrange(97, 123)]) * random.randrange(1, 9)
    steps: dict[str, Callable[[Any, str], object]] = {
        f"pipe_file {file}": lambda fs, at: fs.pipe_file(f"{at}/{file}", data),
        f"pipe {file} {other}": lambda fs, at: fs.pipe({f"{at}/{file}": data, f"{at}/{other}": b"2"}),
        f"touch {file}": lambda fs, at: fs.touch(f"{at}/{file}"),
        f"write_text {file}": lambda fs, at: fs.write_text(f"{at}/{file}", "ä\n", newline="\r\n"),
        f"open {file}": lambda fs, at: written(fs, f"{at}/{file}", data),
        f"append {file}": lambda fs, at: written(fs, f"{at}/{file}", data, mode="ab"),
        f"transaction {flag}": lambda fs, at: transaction(fs, at, data, fails=flag),
        f"put {target}{slash} {flag}": lambda fs, at: put(fs, f"{at}/{target}{slash}", flag),
        f"cp_file {file} {other}": lambda fs, at: fs.cp_file(f"{at}/{file}", f"{at}/{target}-{other}"),
        f"cp {path}{slash} {target} {flag} {depth}": lambda fs, at: fs.cp(
            f"{at}/{path}{slash}", f"{at}/{target}", recursive=flag, maxdepth=depth
        ),
        f"cp {glob} {target}/ {flag}": lambda fs, at: fs.cp(f"{at}/{glob}", f"{at}/new/x/", recursive=flag),
        f"mv {file} {target}": lambda fs, at: fs.mv(f"{at}/{file}", f"{at}/{target}-moved"),
        f"rm {path} {flag}": lambda fs, at: fs.rm(f"{at}/{path}", recursive=flag),
        f"rm {glob}": lambda fs, at: fs.rm(f"{at}/{glob}"),
        f"rm of a list {file} {other}": lambda fs, at: fs.rm([f"{at}/{file}", f"{at}/{other}"]),
        f"rm_file {file}": lambda fs, at: fs.rm_file(f"{at}/{file}"),
        f"mkdir {path}": lambda fs, at: fs.mkdir(f"{at}/{path}"),
        f"makedirs {path}": lambda fs, at: fs.makedirs(f"{at}/{path}", exist_ok=True),
        f"mapper {target}": lambda fs, at: fs.get_mapper(f"{at}/{target}").update({"x/y": data}),
    }
    name, step = random.choice(list(steps.items()))
    return name, lambda fs, at: (step(fs, at), None)[1]  # s3fs returns responses, and we nothing.


def in_order(listing: list[Any]) -> list[Any]:
    return sorted(listing, key=lambda entry: (entry["name"], entry["type"]) if isinstance(entry, dict) else entry)


def walked(fs: Any, path: str, depth: int | None) -> object:
    return [(root, sorted(above), sorted(files)) for root, above, files in fs.walk(path, maxdepth=depth)]


def read_in_pieces(fs: Any, path: str) -> object:
    with fs.open(path, "rb") as file:
        return file.read(1), file.seek(2), file.read(2), file.tell(), file.seek(0, 2), file.size, file.read()


def written(fs: Any, path: str, data: bytes, *, mode: str = "wb") -> None:
    with fs.open(path, mode) as file:
        before = file.tell()
        assert (file.write(data), file.tell() - before, file.write(b"z")) == (len(data), len(data), 1)


def transaction(fs: Any, at: str, data: bytes, *, fails: bool) -> None:
    with fs.transaction:
        for name in ("d/a", "d2/a"):
            with fs.open(f"{at}/{name}", "wb") as file:
                file.write(data)
        if fails:
            raise InterruptedError


def put(fs: Any, path: str, recursive: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("source/one", "source/below/two"):
            (Path(folder) / name).parent.mkdir(exist_ok=True, parents=True)
            (Path(folder) / name).write_bytes(name.encode())
        fs.put(f"{folder}/source", path, recursive=recursive)


def got(fs: Any, path: str, recursive: bool, depth: int | None) -> object:
    with tempfile.TemporaryDirectory() as folder:
        fs.get(path, f"{folder}/got/", recursive=recursive, maxdepth=depth if recursive else None)
        files = [Path(above) / name for above, _, names in os.walk(folder) for name in names]
        return sorted((str(file.relative_to(folder)), file.read_bytes()) for file in files)


# --- comparison -----------------------------------------------------------------------------------------------------

KINDS = (FileNotFoundError, FileExistsError, IsADirectoryError, InterruptedError, OSError, ValueError)
# Lines of the table of the guide: verb, s3fs, and ours.
DIFFERENCES = [
    ("cat_file ", "'OSError'", "b''"),  # A range beyond the end of an object is empty.
    ("cat_file .* 0 -1", "b'.'", "b''"),  # An empty range too: of one byte all but the last.
    ("cat_ranges ", ".*OSError.*", ".*"),  # A range beyond the end of an object is empty.
    ("(open|read_text|read_block|head and tail) ", "b?''|\\[.*", "'FileNotFoundError'"),  # A directory is not a file.
]


def plain(found: Any, at: str) -> Any:
    """A result without what belongs to one of the two."""
    if isinstance(found, str):
        return re.sub(f"^{at}(?=/|$)", "bucket", found)
    if isinstance(found, dict) and {"name", "type"} <= found.keys():
        return plain(found["name"], at), found["type"], found["size"] or 0
    if isinstance(found, dict):
        return {plain(name, at): plain(value, at) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [plain(one, at) for one in found]
    return kind_of(found) if isinstance(found, Exception) else found


def kind_of(error: Exception) -> str:
    return next((kind.__name__ for kind in KINDS if isinstance(error, kind)), type(error).__name__)


def outcome(step: Callable[[Any, str], object], fs: Any, at: str) -> object:
    try:
        return plain(step(fs, at), at)
    except Exception as error:
        return kind_of(error)


def is_meant(name: str, *found: object) -> bool:
    theirs, ours = (repr(one) for one in found)
    return any(
        re.match(verb, name) and re.fullmatch(there, theirs) and re.fullmatch(here, ours)
        for verb, there, here in DIFFERENCES
    )


def objects(bucket: str) -> dict[str, bytes]:
    """The objects as moto holds them."""
    return {name: key.value for name, key in s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[bucket].keys.items()}


@pytest.fixture(scope="module")
def file_systems(s3_server: CountingS3Server) -> Iterator[tuple[Any, S3FileSystem]]:
    """s3fs, which believes no listing, and ours, which does."""
    words: dict[str, Any] = {
        "key": s3_server.access_key_id,
        "secret": s3_server.secret_access_key,
        "client_kwargs": {"endpoint_url": s3_server.endpoint_url, "region_name": s3_server.region},
    }
    theirs = s3fs.S3FileSystem(**words, use_listings_cache=False, skip_instance_cache=True)
    ours = S3FileSystem(**words)
    yield theirs, ours
    ours.close()
    theirs.close_session(theirs.loop, theirs.s3)


@pytest.mark.parametrize("seed", SEEDS)
def test_verbs_do_what_those_of_s3fs_do(
    file_systems: tuple[Any, S3FileSystem], s3_server: CountingS3Server, random_name: Callable[[], str], seed: int
) -> None:
    random, theirs, ours = Random(seed), *file_systems
    at = [random_name(), random_name()]
    for bucket in at:
        s3_server.create_bucket(bucket)
    for name in random.sample(FILES, 6):
        for fs, bucket in zip((theirs, ours), at, strict=True):
            fs.pipe_file(f"{bucket}/{name}", name.encode())
    history: list[str] = []
    for _ in range(STEPS):
        name, step = (writing if random.random() < 0.4 else reading)(random)
        history.append(name)
        found = [outcome(step, fs, bucket) for fs, bucket in zip((theirs, ours), at, strict=True)]
        assert found[0] == found[1] or is_meant(name, *found), history
        assert objects(at[0]) == objects(at[1]), history
