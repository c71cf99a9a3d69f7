"""``ap.Path`` and ``ap.sync.Path``: the words of pathlib, what they send, and keys that stay as they are."""

import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path as LocalPath
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch.errors import AlreadyExists, InvalidArgument, InvalidType, IsADirectory, NotFound, Unsupported
from aioprefetch.testing import CountingS3Server

ROOT = ap.Operator.from_uri("memory://words")
NAMES = st.text("ab.-é ", min_size=1, max_size=5).filter(lambda name: name not in (".", ".."))
KEYS = st.lists(NAMES, max_size=4).map("/".join)


@given(KEYS, st.lists(NAMES, max_size=2).map("/".join))
def test_where_the_rules_agree_they_are_those_of_pathlib(key: str, other: str) -> None:
    """Keys of plain segments, with or without a slash at the end."""
    ours, theirs = ROOT / key, PurePosixPath(key)
    assert (ours.parts, ours.name, ours.stem, ours.suffix) == (theirs.parts, theirs.name, theirs.stem, theirs.suffix)
    assert ours.parent.parts == theirs.parent.parts
    assert (ours / other).parts == (theirs / other).parts == ours.joinpath(*other.split("/")).parts
    if key:
        directory = ROOT / f"{key}/"
        assert (directory.name, directory.stem, directory.suffix) == (theirs.name, theirs.stem, theirs.suffix)
        assert directory.parent == ours.parent
        assert directory / "x" == ours / "x" == ours.parent / theirs.name / "x"
        assert ours.with_name("new").parts == theirs.with_name("new").parts
        assert ours.with_suffix(".zst").parts == theirs.with_suffix(".zst").parts


@given(st.text("ab/.", max_size=8), st.text("ab/", min_size=1, max_size=4))
def test_keys_stay_as_they_are(key: str, other: str) -> None:
    path = ROOT / key
    assert path.key == key == "/".join(path.parts)
    assert (path / other).key.endswith(other)
    assert (path / other).key.removesuffix(other) in (key, f"{key}/")
    assert str(path) == f"memory://words/{key}"
    assert ap.Path(str(path)) == path
    assert pickle.loads(pickle.dumps(path)) == path
    steps = 0
    while path.key:
        assert path.key.startswith(path.parent.key)
        assert len(path.parent.key) < len(path.key)
        path, steps = path.parent, steps + 1
    assert steps <= len(key)
    assert path.parent == path


def test_names_of_odd_keys() -> None:
    found = {key: ((ROOT / key).name, (ROOT / key).parent.key) for key in ("a//b", "a//", "/b", "/", "", "a/b/")}
    assert found == {
        "a//b": ("b", "a//"),
        "a//": ("", "a"),
        "/b": ("b", "/"),
        "/": ("", ""),
        "": ("", ""),
        "a/b/": ("b", "a"),
    }
    for name in ("", "a/b"):
        with pytest.raises(InvalidArgument, match="not a name"):
            (ROOT / "k").with_name(name)
    with pytest.raises(ValueError, match="suffix"):
        (ROOT / "k").with_suffix("zst")
    for other in (PurePosixPath("x"), b"x", None):
        with pytest.raises(InvalidType, match="must be a string"):
            ROOT / "k" / other
        with pytest.raises(InvalidType, match="must be a string"):
            ROOT / other  # type: ignore[operator]


def test_paths_are_equal_by_store_and_key() -> None:
    options: dict[str, Any] = {"endpoint_url": "http://127.0.0.1:9", "region": "r", "allow_http": True}
    path = ap.Path("s3://bucket/a/b", **options, access_key_id="AK", secret_access_key="hidden")
    same = [
        ap.Path("s3://bucket/a", **options, anonymous=True) / "b",
        ap.Operator.from_uri("s3://bucket/a", **options, anonymous=True, memory_bytes="1GiB") / "b",
        path.parent / "b",
        pickle.loads(pickle.dumps(path)),
    ]
    assert {path, *same} == {path}
    assert len({path, path / "", path.parent, path / "c"}) == 3
    other = ap.Path("s3://bucket/a/b", region="r", anonymous=True)
    assert path != other
    assert path != str(path)
    assert path != ap.sync.Path("s3://bucket/a/b", **options, anonymous=True)
    assert sorted([path / "c", path, path / "b"]) == [path, path / "b", path / "c"]
    assert repr(path) == "Path('s3://bucket/a/b')"
    assert b"hidden" not in pickle.dumps(path)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("s3://bucket", ""),
        ("s3://bucket//x/", "/x/"),
        ("https://host/a/b?v=1", "a/b"),
        ("memory://name/a%20b", "a%20b"),
    ],
)
def test_urls(url: str, key: str) -> None:
    assert ap.Path(url).key == key
    assert ap.sync.Path(url).key == key


def test_a_path_needs_a_url() -> None:
    with pytest.raises(ap.ConfigInvalid, match="not a URL"):
        ap.Path("no/url")
    with pytest.raises(ap.ConfigInvalid, match="unknown option"):
        ap.Path("memory://name/k", unknown=1)  # type: ignore[call-arg]


# --- verbs, of both kinds ---------------------------------------------------------------------------------------------


async def here(value: Any) -> Any:
    """What is awaited, or is there."""
    return await value if isinstance(value, Awaitable) else value


async def keys_of(paths: Any) -> list[str]:
    """Those of an iteration of either kind."""
    return [path.key for path in paths] if isinstance(paths, Iterator) else [path.key async for path in paths]


@pytest.fixture(params=["memory", "file", "s3"])
def base(
    request: pytest.FixtureRequest, tmp_path: LocalPath, s3_server: CountingS3Server, random_name: Callable[[], str]
) -> tuple[str, dict[str, Any]]:
    """The URL of a store, and its options."""
    name = random_name()
    if request.param == "s3":
        s3_server.create_bucket(name)
        keys = {"access_key_id": "AK", "secret_access_key": "SK", "region": "us-east-1"}
        return f"s3://{name}/top", {"endpoint_url": s3_server.endpoint_url, **keys}
    return (f"memory://{name}/top" if request.param == "memory" else f"file://{tmp_path}/top"), {}


@pytest.fixture(params=["awaited", "sync"])
async def top(request: pytest.FixtureRequest, base: tuple[str, dict[str, Any]]) -> AsyncIterator[Any]:
    """A directory in the store, as a path of either kind."""
    url, options = base
    if request.param == "sync":
        path: Any = ap.sync.Path(url, **options)
        yield path
        path.operator.close()
    else:
        path = ap.Path(url, **options)
        yield path
        await path.operator.aclose()


async def test_bytes_and_texts(top: Any) -> None:
    path = top / "notes.txt"
    assert await here(path.exists()) is False
    assert await here(path.write_text("ein\r\nzwei é")) == 11
    assert await here(path.read_text()) == "ein\nzwei é"
    assert await here(path.read_text(newline="")) == "ein\r\nzwei é"
    assert await here(path.read_text("latin-1", newline="")) != "ein\r\nzwei é"
    assert await here(path.write_bytes(memoryview(b"1234"), content_type=None)) == 4
    assert await here(path.read_bytes()) == b"1234"
    assert (await here(path.stat())).size == 4
    with pytest.raises(AlreadyExists):
        await here(path.write_bytes(b"", if_not_exists=True))
    with pytest.raises(NotFound):
        await here((top / "none").read_bytes())


async def test_what_is_there(top: Any) -> None:
    await here((top / "d" / "inner" / "k").write_bytes(b"k"))
    found = {
        key: (await here((top / key).exists()), await here((top / key).is_file()), await here((top / key).is_dir()))
        for key in ("d", "d/", "d/inner", "d/inner/k", "d/none", "none/")
    }
    is_directory = (True, False, True)
    assert found == {
        **dict.fromkeys(("d", "d/", "d/inner"), is_directory),
        "d/inner/k": (True, True, False),
        **dict.fromkeys(("d/none", "none/"), (False, False, False)),
    }
    assert (await here((top / "d").stat())).is_directory
    with pytest.raises(NotFound):
        await here((top / "none").stat())


async def test_listings(top: Any) -> None:
    for key in ("a.csv", "b.txt", "d/c.csv", "d/e/f.csv", "d[1]/x*y"):
        await here((top / key).write_bytes(b""))

    async def below(paths: Any) -> list[str]:
        return sorted(key[len(top.key) + 1 :] for key in await keys_of(paths))

    assert await below(top.iterdir()) == ["a.csv", "b.txt", "d/", "d[1]/"]
    assert await below((top / "d").iterdir()) == await below((top / "d/").iterdir()) == ["d/c.csv", "d/e/"]
    assert await below((top / "d[1]").iterdir()) == ["d[1]/x*y"]
    assert await below(top.glob("*.csv")) == ["a.csv"]
    assert await below(top.glob("**/*.csv")) == ["a.csv", "d/c.csv", "d/e/f.csv"]
    assert await below(top.glob("d/*")) == ["d/c.csv", "d/e/"]
    assert await below(top.glob("d/*/*.csv")) == ["d/e/f.csv"]
    assert await below(top.glob("[a-b].*")) == ["a.csv", "b.txt"]
    assert await below(top.glob("b.txt")) == ["b.txt"]
    assert await below((top / "none").iterdir()) == []
    with pytest.raises(InvalidArgument, match="cannot be understood"):
        top.glob("{a,b}")


async def test_renames(top: Any) -> None:
    a, b = top / "a", top / "b"
    await here(a.write_bytes(b"a"))
    await here(b.write_bytes(b"b"))
    with pytest.raises(FileExistsError):
        await here(a.rename(b))
    assert (await here(a.read_bytes()), await here(b.read_bytes())) == (b"a", b"b")
    assert await here(a.replace(b)) == b
    assert (await here(a.exists()), await here(b.read_bytes())) == (False, b"a")
    moved = await here(b.rename(str(top / "c")))
    assert (moved, type(moved)) == (top / "c", type(top))
    assert await here(moved.rename(f"{top.key}/d")) == top / "d"
    with pytest.raises(Unsupported, match=r"ap\.copy"):
        await here((top / "d").rename("memory://elsewhere/k"))
    with pytest.raises(Unsupported, match=r"ap\.copy"):
        await here((top / "d").rename(ROOT / "k"))
    await here((top / "dir" / "x").write_bytes(b"x"))
    assert await here((top / "dir/").rename(top / "other/")) == top / "other/"
    assert await here((top / "other" / "x").read_bytes()) == b"x"


async def test_unlink(top: Any) -> None:
    path = top / "k"
    with pytest.raises(FileNotFoundError):
        await here(path.unlink())
    await here(path.unlink(missing_ok=True))
    await here((top / "none/").unlink(missing_ok=True))
    await here(path.write_bytes(b"k"))
    await here(path.unlink())
    assert await here(path.exists()) is False
    await here((top / "d" / "k").write_bytes(b"k"))
    for missing_ok in (False, True):
        with pytest.raises(IsADirectory, match="unlink"):
            await here((top / "d/").unlink(missing_ok=missing_ok))
    assert await here((top / "d" / "k").read_bytes()) == b"k"


async def test_files_are_opened(top: Any) -> None:
    if isinstance(top, ap.Path):
        async with (top / "k").open("wb") as writer:
            await writer.write(b"bytes")
        with pytest.raises(AlreadyExists):
            async with (top / "k").open("xb") as writer:
                await writer.write(b"others")
        async with (top / "k").open(policy="random") as reader:
            assert await reader.read_at(1, 2) == b"yt"
        for mode in ("r", "w", "ab"):
            with pytest.raises(Unsupported, match="read_text"):
                top.open(mode)
    else:
        with (top / "k").open("w") as file:
            file.write("text\n")
        with (top / "k").open() as file:
            assert file.read() == b"text\n"


# --- alone ------------------------------------------------------------------------------------------------------------


def test_links_to_a_local_directory_are_followed(tmp_path: LocalPath) -> None:
    """Where the path is named, as by ``ap.sync.open``."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    path = ap.sync.Path(tmp_path / "link" / "k")
    path.write_bytes(b"k")
    assert path == ap.sync.Path((tmp_path / "real" / "k").as_uri())
    assert (path.parent.name, [*path.parent.iterdir()]) == ("real", [path])
    assert (tmp_path / "real" / "k").read_bytes() == b"k"
    path.operator.close()


def test_a_change_ends_the_readers_that_are_kept() -> None:
    with ap.sync.BlockingOperator(ap.Operator.from_uri("memory://kept-readers")) as op:
        path = op / "k"
        for data in (b"first", b"other"):
            path.write_bytes(data)
            assert op.read_at("k", 0, 5) == data
        path.rename("new")
        with pytest.raises(NotFound):
            op.read_at("k", 0, 5)


@pytest.mark.parametrize(
    ("call", "sent"),
    [
        (lambda path: path.read_bytes(), ["GET"]),
        (lambda path: path.write_bytes(b"new"), ["PUT"]),
        (lambda path: path.stat(), ["HEAD"]),
        (lambda path: path.exists(), ["HEAD"]),
        (lambda path: path.is_file(), ["HEAD"]),
        (lambda path: path.parent.is_dir(), ["LIST"]),
        (lambda path: (path / "none").exists(), ["HEAD", "LIST"]),
        (lambda path: path.unlink(), ["HEAD", "DELETE"]),
        (lambda path: path.unlink(missing_ok=True), ["DELETE"]),
        (lambda path: keys_of(path.parent.iterdir()), ["LIST"]),
        (lambda path: path.rename(path / "new"), ["HEAD", "HEAD", "POST", "PUT", "POST", "HEAD", "DELETE"]),
        (lambda path: path.replace(path / "new"), ["HEAD", "PUT", "HEAD", "DELETE"]),
        (lambda path: keys_of(path.parent.glob("**/k*")), ["LIST"]),
    ],
)
async def test_requests(
    s3_server: CountingS3Server,
    random_name: Callable[[], str],
    call: Callable[[Any], Awaitable[object]],
    sent: list[str],
) -> None:
    """Those of the page."""
    bucket = random_name()
    s3_server.create_bucket(bucket)
    keys: dict[str, Any] = {"access_key_id": "AK", "secret_access_key": "SK", "region": "us-east-1"}
    path = ap.Path(f"s3://{bucket}/d/k", endpoint_url=s3_server.endpoint_url, **keys)
    async with path.operator:
        await path.write_bytes(b"bytes")
        s3_server.reset()
        await call(path)
    methods = ["LIST" if "list-type" in one.query else one.method for one in s3_server.requests]
    assert methods == sent
