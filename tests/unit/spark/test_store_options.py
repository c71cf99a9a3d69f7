"""Options of stores for each place of a source: what is read, its state, a state to follow, quarantine."""

import pytest

from aioprefetch.errors import ConfigInvalid, Unavailable
from aioprefetch.layers import RetryLayer
from aioprefetch.layers.throttle import RequestRateLayer
from aioprefetch.spark.hadoop import ALL_BUCKETS, SessionSettings
from aioprefetch.spark.settings import SourceSettings, is_same_endpoint, parse_options
from aioprefetch.testing import Fault, FaultServer, Rule

STORE = "http://store:9000"
SESSION = SessionSettings(
    {
        ALL_BUCKETS: {"endpointurl": STORE, "accesskeyid": "K", "secretaccesskey": "S"},
        **{
            bucket: {"endpointurl": f"https://{bucket}", "accesskeyid": f"K-{bucket}", "secretaccesskey": "S"}
            for bucket in ("in", "state", "other", "dead")
        },
    }
)


def parsed(path: str, **options: str) -> SourceSettings:
    return parse_options({"path": path, **options}, SESSION)


def keys_of(settings: SourceSettings) -> list[str | None]:
    places = (settings.operator, settings.state_operator, settings.attach_operator, settings.quarantine_operator)
    return [place.get("access_key_id") for place in places]


def test_each_place_gets_what_the_session_says_of_its_bucket() -> None:
    settings = parsed(
        "s3a://in/x", stateLocation="s3://state/x", attachTo="s3a://other/x", quarantineLocation="s3://dead/x"
    )
    assert keys_of(settings) == ["K-in", "K-state", "K-other", "K-dead"]
    assert settings.attach_operator["endpoint_url"] == "https://other"
    assert settings.left_out is None
    settings = parsed("/data", quarantineLocation="s3://dead/x", attachTo="s3://elsewhere/x")
    assert keys_of(settings) == [None, None, "K", "K-dead"]
    assert "K-dead" not in repr(settings)


def test_an_option_may_be_one_of_any_place_and_goes_to_those_that_know_it() -> None:
    settings = parsed(
        "/data", stateLocation="s3://state/x", region="eu-west-1", followSymlinks="true", memoryBytes="64m"
    )
    assert settings.operator == {"follow_symlinks": True, "memory_bytes": 64 << 20}
    assert settings.state_operator["region"] == "eu-west-1"
    assert "follow_symlinks" not in settings.state_operator
    settings = parsed("https://host/x/", stateLocation="s3://b/x", authToken="t", endpointUrl=STORE)
    assert settings.operator == {"auth": "t"}
    assert settings.state_operator == {"endpoint_url": STORE, "access_key_id": "K", "secret_access_key": "S"}
    with pytest.raises(ConfigInvalid, match="region means nothing for file:// and memory://"):
        parsed("/data", stateLocation="memory://x/state", region="eu-west-1")
    with pytest.raises(ConfigInvalid, match="region means nothing for file://"):
        parsed("/data", region="eu-west-1")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://store:9000/", STORE),
        ("HTTP://Store:9000", STORE),
        ("https://store:443//", "https://store"),
        ("http://store:80", "http://store/"),
        ("https://s3.amazonaws.com/", None),
    ],
)
def test_endpoints_that_are_one(one: str, other: str | None) -> None:
    assert is_same_endpoint(one, other)


@pytest.mark.parametrize(
    "other", ["https://store:9000", "http://store:9001", "http://store", "http://store:9000/minio", "http://store:x"]
)
def test_endpoints_that_are_not_one(other: str) -> None:
    assert not is_same_endpoint(other, STORE)


def test_keys_stay_with_their_endpoint_however_it_is_written() -> None:
    settings = parsed("s3://b/x", endpointUrl="http://STORE:9000/")
    assert (settings.operator["access_key_id"], settings.left_out) == ("K", None)


def test_keys_that_are_left_out_are_reported() -> None:
    settings = parsed("s3://b/x", endpointUrl="https://elsewhere")
    assert settings.operator == {"endpoint_url": "https://elsewhere"}
    assert settings.left_out is not None
    assert f"of the endpoint {STORE}, and endpointUrl is https://elsewhere" in settings.left_out
    assert "accessKeyId" in settings.left_out
    own = parsed("s3://b/x", endpointUrl="https://elsewhere", profile="mine")
    assert (own.operator, own.left_out) == ({"endpoint_url": "https://elsewhere", "profile": "mine"}, None)
    assert parsed("s3://b/x", stateLocation="s3://state/x", endpointUrl=STORE).left_out is not None


@pytest.mark.parametrize(
    ("options", "requests"),
    [({}, 4), ({"attemptsMax": "2"}, 2), ({"attemptsMax": "6"}, 6), ({"attemptsMax": "6", "retrySeconds": "0"}, 1)],
)
async def test_requests_are_sent_again_as_the_options_say(options: dict[str, str], requests: int) -> None:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    from aioprefetch.spark.operators import source_operator

    async with FaultServer({}, [Rule(fault=Fault(status=500), times=None)]) as server:
        operator = source_operator(parse_options({"path": f"{server.url}/x/", **options}))
        with pytest.raises(Unavailable):
            await operator.read("a")
        assert len(server.requests) == requests
        await operator.aclose()


def test_each_place_sends_requests_again_as_the_options_say() -> None:
    settings = parsed("/data", stateLocation="s3://state/x", quarantineLocation="http://dead/x/", attemptsMax="7")
    places = (settings.operator, settings.state_operator, settings.quarantine_operator)
    assert [place["attempts_max"] for place in places] == [7, 7, 7]


def test_a_task_has_its_share_of_the_requests_and_time_as_its_limit() -> None:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    from aioprefetch.spark.operators import source_operator, task_operator

    settings = parse_options({"path": "/data/x/", "requestsPerSecond": "30", "taskSlots": "4"})
    rates = [
        [layer for layer in operator.layers if isinstance(layer, RequestRateLayer)]
        for operator in (source_operator(settings), task_operator(settings, "file:///data/x"))
    ]
    assert rates == [[RequestRateLayer(30)], [RequestRateLayer(7.5)]]
    for options, attempts in (({}, 20), ({"attemptsMax": "2"}, 2)):
        operator = task_operator(parse_options({"path": "/data/x/", **options}), "file:///data/x")
        (retry,) = [layer for layer in operator.layers if isinstance(layer, RetryLayer)]
        assert retry.attempts_max == attempts
    for wrong in ("0", "-1", "many", "inf"):
        with pytest.raises(ConfigInvalid, match=r"requestsPerSecond=.* is not a number above 0"):
            parse_options({"path": "/data/x/", "requestsPerSecond": wrong})
