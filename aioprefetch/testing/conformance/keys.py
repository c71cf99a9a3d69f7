"""Keys that break clients which quote, unquote or normalise paths wrongly."""

SPECIAL_KEYS = (
    "with space and\u00a0another",
    "plus+sign",
    "percent%20encoded %",
    "hash#fragment",
    "question?mark=1&other",
    '" !@$^&()_+-=;\',.txt"',
    "über/日本語/\U0001f980",
    "brackets[0]{1}<2>|~`",
    "trailing ",
    "back\\slash",
    "colon:semicolon;equals=",
    "/".join(["k" * 200] * 5)[:1000],
)

DOUBLE_SLASH_KEYS = ("a//b", "/leading", "a///b")
ESCAPING_PATHS = ("../outside", "a/../../outside", "a/..", "..", ".", "./a", "a/./b")
