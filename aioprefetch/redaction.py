"""What no message may hold: credentials in URLs, signatures, and characters that forge a line of a log. Pure.

Everything here takes a time that grows with the length of its text and no faster: texts come from servers.
"""

from __future__ import annotations

import re
from typing import TypeVar

Text = TypeVar("Text", str, str | None)

# A foreign text within a message of ours has at most so many characters; a message, or a path in it, these.
QUOTED_CHARACTERS_MAX = 200
MESSAGE_CHARACTERS_MAX = 4096
# What is longer is cut before anybody looks at it.
TEXT_CHARACTERS_MAX = 16 << 10

# Each begins where a word does and matches at once or never, so no character is looked at again and again.
_URL = re.compile(r"\b(\w++://)([^\s/?#]*+)([^\s?#]*+)(?:[?#]\S*+)?")
# Between the name of a header, parameter or field and its value: as in a header, a URL, JSON, XML, HTML, or a repr.
_BETWEEN = r"(?:[\s:=>,(\[{\"'\\]|%3[ad]|%2[02]|&(?:quot|apos|lt|gt|#\d{1,3}|#x[0-9a-f]{1,2});|\bb(?=\\?[\"'])){1,16}+"
_VALUE = r"(?:[^\s&<>\"'\\,)\]}]|\\/)++"
_NAMES = (
    r"x-amz-(?:signature|credential|security-token|(?:copy-source-)?server-side-encryption-customer-key(?:-md5)?)"
    r"|x-amz-s3session-token|(?:copysource)?ssecustomerkey(?:md5)?"
    r"|x-amz-sso_bearer_token|x-aws-ec2-metadata-token"
    # Options of ours have such names too, so a value has to be given to them.
    r"|(?:aws_?)?(?:secret_?access_?key|(?:access|bearer|id|refresh|session|web_?identity)_?token)"
    r"(?=[\s\"'\\]{0,3}[:=>])"
)
_SIGNED = re.compile(rf"(?<![\w-])((?:{_NAMES}){_BETWEEN}){_VALUE}", re.IGNORECASE)
_SIGNATURE = re.compile(rf"(?<!\w)(signature(?:provided)?{_BETWEEN})[0-9a-f]{{16,}}+", re.IGNORECASE)
_AUTHORIZATION = re.compile(
    rf"(?<!\w)((?:proxy-)?authorization{_BETWEEN}(?:aws4-hmac-sha256|aws|basic|bearer|digest|negotiate|token)"
    rf"(?:\s|%20|\+){{1,4}}+(?:credential=)?){_VALUE}",
    re.IGNORECASE,
)
# Nearly no text has one of these words, and looking for a word is cheap.
_SECRETS = (
    (("x-amz-", "ssecustomerkey", "secret", "token"), _SIGNED),
    (("signature",), _SIGNATURE),
    (("authorization",), _AUTHORIZATION),
)


def redact(text: str) -> str:
    """``text`` without what may be a bearer credential: query and user of each URL, signatures, tokens, keys.

    Of a text with more than ``TEXT_CHARACTERS_MAX`` characters only the beginning is kept.
    """
    if len(text) > TEXT_CHARACTERS_MAX:
        text = _cut(text)
    if "://" in text:
        text = _URL.sub(_without_credentials, text)
    words = text.lower()
    for hints, pattern in _SECRETS:
        if any(hint in words for hint in hints):
            text = pattern.sub(r"\1***", text)
    return text


def excerpt(text: Text, characters_max: int = QUOTED_CHARACTERS_MAX) -> Text:
    """A foreign text as it may stand in a message: redacted, on one line, of at most ``characters_max`` characters.

    ``None`` stays ``None``, so that ``{excerpt(etag)!r}`` says what there was.
    """
    if text is None:
        return text
    # Redacted before it is cut: half of a secret must not remain. No character becomes less than one of the line.
    return shortened(printable(redact(text)[: characters_max + 1]), characters_max)


def printable(path: str) -> str:
    """A path as one line of text: control characters escaped, so that a key cannot forge a log line."""
    if path.isprintable():
        return path
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in path)


def shortened(text: str, characters_max: int = MESSAGE_CHARACTERS_MAX) -> str:
    """The beginning of a text, with a sign that there was more."""
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


def _without_credentials(url: re.Match[str]) -> str:
    return url[1] + url[2].rpartition("@")[2] + url[3]


def _cut(text: str) -> str:
    """The beginning of a long text. A user whose ``@`` was cut off with the rest does not stay behind."""
    kept = text[:TEXT_CHARACTERS_MAX]
    _, separator, authority = kept.rpartition("://")
    if separator and not re.search(r"[\s/?#]", authority):
        kept = kept[: len(kept) - len(authority)]
    return kept
