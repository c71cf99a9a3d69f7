"""How two places lie to one another, beside what their paths say."""

from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.accessor.service_base import identity_of_key
from aioprefetch.plan.overlap import conflict, folded, path_between, position
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Identity, ServiceInfo

ROOTS = st.sampled_from(["", "a", "a/b"])
PLACES = st.lists(st.sampled_from(["a", "b", ""]), max_size=4).map(lambda names: "".join(f"{name}/" for name in names))


def place(root: str, path: str) -> Identity:
    return identity_of_key(ServiceInfo(scheme="memory", name="one", root=root), path)


def whole(root: str, path: str) -> str:
    return f"{root}/{path}" if root else path


@checks("reliability:W22")
@given(ROOTS, PLACES, ROOTS, PLACES)
def test_two_directories_lie_as_their_whole_keys_say(root: str, path: str, other_root: str, other: str) -> None:
    target, source = place(root, path), place(other_root, other)
    to, begin = whole(root, path), whole(other_root, other)
    lies = position(target, source)
    if to == begin:
        assert lies == "same"
    elif to.startswith(begin):
        assert lies == "inside"
        assert begin + path_between(source, target) == to
    elif begin.startswith(to):
        assert lies == "around"
        assert to + path_between(target, source) == begin
    else:
        assert lies == "apart"


def test_places_of_two_stores_lie_apart() -> None:
    other = identity_of_key(ServiceInfo(scheme="memory", name="two"), "a/")
    for path in ("", "a/", "a/b/"):
        assert position(place("", path), other) == position(other, place("", path)) == "apart"


def test_a_run_has_a_conflict_where_a_target_is_a_source_or_is_one_twice() -> None:
    def found(*pairs: str) -> tuple[int, int, bool] | None:
        sources, targets = zip(*((place("", one) for one in pair.split()) for pair in pairs), strict=True)
        return conflict(sources, targets)

    assert found("a x", "b y") is None
    assert found("a a", "b y") is None  # The verb says that these are one object.
    assert found("a x", "b a") == (1, 0, True)
    assert found("a b", "b y") == (0, 1, True)
    assert found("a x", "b y", "c x") == (2, 0, False)


def test_a_key_that_begins_with_another_lies_apart() -> None:
    assert position(place("", "ab/"), place("", "a/")) == "apart"
    assert position(place("", "a"), place("", "a/")) == "apart"
    assert position(place("", "a"), place("", "a")) == "same"


@checks("reliability:W21")
def test_a_store_is_one_with_any_spelling_of_its_endpoint_and_with_any_credentials() -> None:
    def store(endpoint: str, **facts: str) -> tuple[str, ...]:
        return identity_of_key(ServiceInfo(scheme="s3", name="bucket", endpoint=endpoint, **facts), "k").store

    same = ["http://Host:9000", "http://host:9000/"]
    assert len({store(each, principal=each) for each in same}) == 1
    assert store("https://host") == store("https://host:443/") != store("http://host")
    aws = ["", "https://s3.eu-west-1.amazonaws.com", "https://s3.dualstack.eu-west-1.amazonaws.com:443"]
    assert len({store(each, region="eu-west-1") for each in aws}) == 1
    assert store("", region="cn-north-1") == store("https://s3.cn-north-1.amazonaws.com.cn") != store("")
    info = ServiceInfo(scheme="s3a", name="bucket")
    assert identity_of_key(info, "k") == identity_of_key(ServiceInfo(scheme="s3", name="bucket"), "k")


@checks("reliability:W24")
def test_a_folded_name_has_neither_case_nor_a_form_of_its_letters() -> None:
    assert folded("\u00c9/A") == folded("e\u0301/a") != folded("e/a")


NAMES = st.lists(st.sampled_from("abcdef"), max_size=4)


@given(NAMES.map(lambda names: list(dict.fromkeys(names))), NAMES)
def test_a_target_that_is_read_or_written_twice_is_found(sources: list[str], targets: list[str]) -> None:
    targets = targets[: len(sources)]
    found = conflict([place("", name) for name in sources], [place("", name) for name in targets])
    read = any(target in sources and sources.index(target) != number for number, target in enumerate(targets))
    if found is None:
        assert not read
        assert len(set(targets)) == len(targets)
    else:
        first, second, is_read = found
        assert first != second
        assert targets[first] == (sources if is_read else targets)[second]
