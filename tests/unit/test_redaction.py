"""What no message holds: credentials in any notation; and what a long text costs."""

import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.accessor.http_headers import parse_http_date, parse_retry_after
from aioprefetch.accessor.response_check import check_reply
from aioprefetch.errors import (
    MESSAGE_CHARACTERS_MAX,
    QUOTED_CHARACTERS_MAX,
    TEXT_CHARACTERS_MAX,
    NotFound,
    Unexpected,
    excerpt,
    redact,
)
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ReadRequest, UncheckedHead
from tests.profile import each_of

SECRET = "c4n4ry/S+cret=="
LONG = 64 << 10
CPU_SECONDS_MAX = 0.05

NOTATIONS = [
    f"<X-Amz-Signature>{SECRET}</X-Amz-Signature>",
    f"it was X-Amz-Signature={SECRET} in mixed case",
    f"host=h&X-Amz-Credential%3D{SECRET}&x",
    f"http://host/bucket/k%3FX-Amz-Signature%3D{SECRET}",
    f"x-amz-security-token: {SECRET}",
    f"x-amz-security-token:{SECRET}\nx-amz-date:2026",
    f'{{"X-Amz-Security-Token": "{SECRET}"}}',
    f'{{"X-Amz-Security-Token" : "{SECRET}"}}',
    f'{{\\"X-Amz-Security-Token\\": \\"{SECRET}\\"}}',
    f"X-Amz-Signature&quot;:&quot;{SECRET}&quot;",
    f"X-Amz-Signature&#34;:&#34;{SECRET}&#34;",
    f"{{'X-Amz-Security-Token': b'{SECRET}'}}",
    f"((b'x-amz-security-token', b'{SECRET}'),)",
    f"x-amz-server-side-encryption-customer-key: {SECRET}",
    f"x-amz-copy-source-server-side-encryption-customer-key: {SECRET}",
    f"{{'SSECustomerKey': '{SECRET}'}}",
    f"<SecretAccessKey>{SECRET}</SecretAccessKey>",
    f'{{"sessionToken":"{SECRET}"}}',
    f"aws_secret_access_key = {SECRET}",
    f"Authorization: Bearer {SECRET}",
    f"authorization: Basic {SECRET}",
    f"data/x.bin?sv=2026&sig={SECRET}&se=2027",
    f"https://account.blob.core.windows.net/c/x.bin%3Fsv%3D2026%26sig%3D{SECRET}%26se%3D2027",
    f"x?Expires=1&Signature={SECRET}&Key-Pair-Id=APKA",
    *(f"x?{name}={SECRET}" for name in ("token", "api_key", "api-key", "apikey", "password", "client_secret")),
    *(f"x?{name}={SECRET}" for name in ("key", "auth_token", "auth-token", "secret_key", "access_key", "auth")),
    *(f"{name}: {SECRET}" for name in ("auth_token", "authToken", "secret_key", "MINIO_SECRET_KEY", "AccountKey")),
    f'{{"url":"https:\\/\\/h\\/k?se=1\\u0026sig={SECRET}\\u0026x=1"}}',
    f"k\\u003Fsig\\u003D{SECRET}",
    f"k%253Fsv%253D1%2526sig%253D{SECRET}",
    f"k%25253Fsig%25253D{SECRET}",
    f"k%253FX-Amz-Signature%253D{SECRET}%2526x",
    f"Authorization: AWS4-HMAC-SHA256 Credential={SECRET}, SignedHeaders=host;range, Signature=0123456789abcdef",
]


@checks("reliability:K03")
@each_of("text", NOTATIONS)
def test_secrets_outside_of_urls(text: str) -> None:
    """Headers, parameters, XML, JSON, HTML and reprs, in upper and lower case."""
    for shown in (redact(text), excerpt(text), str(Unexpected(text)), str(Unexpected("x", context={"said": text}))):
        assert SECRET not in shown
        assert "***" in shown
    assert redact(text).partition("***")[0] == text.partition(SECRET)[0]


@checks("reliability:K03")
def test_an_error_does_not_show_a_secret_of_its_path() -> None:
    """The path itself is what the caller gave."""
    error = NotFound("there is no such object", operation="read", path=f"k?sig={SECRET}")
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert f"{one} {one!r}".count("read 'k?sig=***'") == 2
        assert one.path == one.filename == f"k?sig={SECRET}"


@each_of("before", ["users/", "users%2F", "users%252f", "token_", "token-", "%2Ftoken_", ".", ""])
def test_a_json_web_token_in_a_path(before: str) -> None:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"
    assert redact(f"{before}{token}/x") == f"{before}***/x"


@each_of("secret", ["first,SECOND", "first)SECOND", "first]S{}ECOND", r"first\u002BSECOND", r"first\/SECOND"])
@each_of("start", ["k?token=", '{"sessionToken":"', "x-amz-security-token: ", "Authorization: Bearer "])
def test_a_secret_with_a_comma_or_a_bracket(start: str, secret: str) -> None:
    """And with characters that JSON has escaped."""
    assert redact(start + secret) == f"{start}***"
    assert redact(f'{start}{secret}" and more') == f'{start}***" and more'


def test_a_signature_without_the_name_of_a_header() -> None:
    digits = "0123456789abcdef" * 4
    for text in (f"Signature:\n{digits}", f"SignedHeaders=host, Signature={digits}", f"SignatureProvided>{digits}<"):
        assert digits not in redact(text)


@each_of(
    "text",
    [
        "session_token is given without access_key_id and secret_access_key",
        "check secret_access_key, and region if it is not AWS",
        "the session_token does not belong to the keys",
        "no authorization was sent: check auth and headers",
        "x-amz-date;x-amz-security-token",
        "the page_token 'x' is of no listing",
        "data/signal/token=7/code=3/secret=no/part-0.parquet",
        "k?versionId=abc&partNumber=7",
        "data/key=7/author=x/tokens=9",
        "secret_key is not set, and no private_key",
        "eyjafjallajokull.eyja.jpg",
    ],
)
def test_words_that_hold_no_secret_stay(text: str) -> None:
    assert redact(text) == text


UNITS = [
    *(
        "a",
        "a ",
        ".",
        "=",
        "\\",
        "@",
        "&",
        "%",
        "é",
        "http://",
        "://",
        "a://",
        "a@",
        "http://a@",
        "https://h/?q ",
        "b'",
    ),
    *("x-amz-", "x-amz-signature=", "x-amz-security-token: ", "authorization: bearer ", "signature=", "signature"),
    *("?sig=", "&token=", "%26pwd%3d", "eyj", "eyjaaaaaaaaaa.", "eyjaaaaaaaaaa.eyjaaaa."),
    *("%253fsig%253d", "%25", "_eyj", "-", "\\\\u0026key=", "\\\\u00", "secret_key=", "auth_", "?a_", "?key-"),
    *("sessiontoken:", "%3d", "&quot;", "&#", "sse", "token", "secretaccesskey>", "aws_"),
]


def cpu_seconds(text: str) -> float:
    """The CPU that the best of three redactions takes."""
    best = float("inf")
    for _ in range(3):
        before = time.thread_time()
        redact(text)
        best = min(best, time.thread_time() - before)
    return best


@pytest.mark.cost
@pytest.mark.parametrize("unit", UNITS)
def test_the_cost_grows_with_the_length_and_no_faster(unit: str) -> None:
    """Twice the text takes twice the time, and what a head may hold a few milliseconds."""
    # With every word in it for which a pattern is tried at all.
    small, large = (
        "token signature authorization key eyj " + (unit * (size // len(unit) + 1))[:size]
        for size in (TEXT_CHARACTERS_MAX // 4, TEXT_CHARACTERS_MAX - 100)
    )
    assert cpu_seconds(large) < max(8 * cpu_seconds(small), 0.004)
    assert cpu_seconds((unit * LONG)[: 1 << 20]) < CPU_SECONDS_MAX


@pytest.mark.cost
@pytest.mark.parametrize("unit", UNITS)
def test_a_long_text_makes_a_short_message(unit: str) -> None:
    text = (unit * LONG)[: 1 << 20]
    before = time.thread_time()
    error = Unexpected(text, path=text, context={"etag": text}, operation="read")
    shown = str(error)
    assert time.thread_time() - before < CPU_SECONDS_MAX * 2
    assert len(shown) < 2 * MESSAGE_CHARACTERS_MAX * 6 + QUOTED_CHARACTERS_MAX + 100  # Escapes have six characters.
    assert len(error.args[0]) <= MESSAGE_CHARACTERS_MAX


@given(st.text(), st.integers(1, 300))
def test_an_excerpt_is_one_short_line(text: str, characters_max: int) -> None:
    shown = excerpt(text, characters_max)
    assert len(shown) <= characters_max
    assert shown.isprintable()


def test_an_excerpt_keeps_what_is_short() -> None:
    """``None`` too, which is what a missing header is."""
    assert excerpt("bytes 0-4/10") == "bytes 0-4/10"
    assert excerpt(None) is None
    assert excerpt("a" * QUOTED_CHARACTERS_MAX) == "a" * QUOTED_CHARACTERS_MAX
    assert excerpt("a" * 1000) == "a" * (QUOTED_CHARACTERS_MAX - 1) + "…"


@each_of("cut", range(-3, 30))
def test_a_cut_leaves_no_half_of_a_credential(cut: int) -> None:
    """Wherever the text is cut: the ``@`` that would show who is a user may lie beyond it."""
    start = "x" * (TEXT_CHARACTERS_MAX - 10 - cut) + " "
    assert SECRET[:4] not in redact(f"{start}https://{SECRET[:6]}@host/ and more")


def test_an_excerpt_leaves_no_half_of_a_credential() -> None:
    """The whole text is redacted before it is cut: behind the cut may be the ``@``, or most of a signature."""
    for length in range(QUOTED_CHARACTERS_MAX - 50, QUOTED_CHARACTERS_MAX):
        start = "x" * length + " "
        assert SECRET[:4] not in excerpt(f"{start}https://{SECRET[:6]}@host/ and more")
        assert "0123" not in excerpt(f"{start}Signature: {'0123456789' * 3}")


WRONG_HEADS = [
    UncheckedHead(status=206, content_range="a" * LONG, content_length=10, etag="e"),
    UncheckedHead(status=206, content_range="http://" * 9000, content_length=10, etag="e"),
    UncheckedHead(status=206, content_range="bytes 0-9/10", content_length=10, etag="a" * LONG),
    UncheckedHead(status=206, content_range="bytes 0-9/10", content_length=10, etag="e", version="a" * LONG),
]


@pytest.mark.cost
@pytest.mark.parametrize("head", WRONG_HEADS)
def test_a_head_with_a_long_field(head: UncheckedHead) -> None:
    """A stranger's word of 64 KiB, in any field that a message quotes."""
    request = ReadRequest(path="k", offset=0, size=10, if_match="e", version="v")
    before = time.thread_time()
    with pytest.raises(Exception, match=r" \[\w+") as caught:
        check_reply(request, head)
    assert time.thread_time() - before < CPU_SECONDS_MAX
    assert len(str(caught.value)) < 1000


@pytest.mark.cost
@pytest.mark.parametrize("text", ["9" * LONG, "a" * LONG, "1 " * LONG, "Fri, " * LONG, "-" * LONG])
def test_times_of_64_kib_are_none(text: str) -> None:
    before = time.thread_time()
    assert parse_http_date(text) is None
    assert parse_retry_after(text) is None
    assert time.thread_time() - before < CPU_SECONDS_MAX
