"""The words of s3fs, boto3 and obstore for options are answered with ours, all of them; slips get the nearest name."""

import inspect
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import boto3
import obstore
import pytest
import s3fs
from botocore.config import Config

from aioprefetch import Operator
from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator.from_uri import elsewhere, store_options
from aioprefetch.options.words import SENTENCES
from aioprefetch.sync import open as open_file
from tests.profile import each_of


def answer(uri: str, name: str) -> str:
    """What the error for an unknown option says between its name and the list of those that there are."""
    with pytest.raises(ConfigInvalid) as caught:
        Operator.from_uri(uri, **{name: 1})  # type: ignore[arg-type]
    scheme = uri.partition(":")[0]
    start, end = f"unknown option {name!r} for {scheme}://", ", ".join(sorted(store_options(scheme)))
    assert caught.value.message.startswith(start)
    assert caught.value.message.endswith(end)
    return caught.value.message.removeprefix(start).removesuffix(end)


@each_of(
    ("uri", "name", "says"),
    [
        ("s3://b", "endpont_url", "did you mean 'endpoint_url'?"),
        ("s3://b", "Endpoint-URL", "did you mean 'endpoint_url'?"),
        ("memory://b", "memory_byte", "did you mean 'memory_bytes'?"),
        ("s3://b", "polcy", "did you mean 'policy' of Operator.reader?"),
        ("s3://b", "anon", "called 'anonymous'"),
        ("s3://b", "skip_signature", "called 'anonymous'"),
        ("s3://b", "key", "called 'access_key_id'"),
        ("s3://b", "aws_access_key_id", "called 'access_key_id'"),
        ("s3://b", "AWS_ACCESS_KEY_ID", "called 'access_key_id'"),
        ("s3://b", "secret", "called 'secret_access_key'"),
        ("s3a://b", "token", "called 'session_token'"),
        ("https://h", "token", "called 'auth'"),
        ("s3://b", "endpoint", "called 'endpoint_url'"),
        ("s3://b", "aws_endpoint", "called 'endpoint_url'"),
        ("s3://b", "region_name", "called 'region'"),
        ("s3://b", "aws_region", "called 'region'"),
        ("s3://b", "path_style", "called 'addressing_style' here (addressing_style='path' or 'virtual')"),
        ("s3://b", "virtual_hosted_style_request", "called 'addressing_style'"),
        ("s3://b", "verify", "called 'ca_bundle' here (the file of the authorities to trust"),
        ("s3://b", "use_ssl", "an endpoint_url that begins with http:// goes without TLS"),
        ("https://h", "password", "called 'auth'"),
        ("https://h", "ssl", "called 'ca_bundle'"),
        ("https://h", "cookies", "called 'headers' here (headers={'Cookie': 'name=value'})"),
        ("file:///x", "default_block_size", "called 'block_bytes'"),
        ("s3://b", "client_kwargs", "options of their own, such as endpoint_url"),
        ("s3://b", "config", "what a Config holds are options of their own: connect_timeout_seconds"),
        ("s3://b", "max_concurrency", "called 'concurrency'"),
        ("s3://b", "max_retries", "called 'attempts_max'"),
        ("memory://b", "retry_config", "RetryLayer"),
        ("s3://b", "connect_timeout", "called 'connect_timeout_seconds'"),
        ("https://h", "read_timeout", "called 'read_timeout_seconds'"),
        ("s3://b", "multipart_chunksize", "called 'part_bytes'"),
        ("s3://b", "timeout", "read_timeout_seconds"),
        ("s3://b", "policy", "'policy' is an option of Operator.reader"),
        ("memory://b", "cache_type", "'policy' is an option of Operator.reader (policy='adaptive' in place of"),
        ("s3://b", "StorageClass", "'storage_class' is an option of Operator.write"),
        ("memory://b", "region", "'region' is an option of s3://"),
        ("file:///x", "key", "'access_key_id' is an option of s3://"),
        ("gs://b", "fallback", "'fallback' is an option of s3://"),
        ("az://c", "fallback", "'fallback' is an option of s3://"),
        ("s3://b", "bucket", "it stands in the URI: s3://bucket/prefix"),
        ("az://c", "sas_token", "called 'sas_key'"),
        ("az://c", "azure_storage_account_name", "called 'account_name'"),
        ("az://c", "key", "called 'account_key'"),
        ("az://c", "user", "called 'account_name'"),
        ("az://c", "token", "called 'credentials' here (a provider of obstore"),
        ("gs://b", "token", "called 'service_account' here (the path of a key file"),
        ("gs://b", "session", "called 'credentials' here (a provider of obstore"),
        ("gs://b", "secret", "keys for the S3 protocol go with s3://bucket"),
        ("s3://b", "get_client", "aioprefetch's own transport"),
    ],
)
def test_an_unknown_option_is_answered_with_the_one_that_is_meant(uri: str, name: str, says: str) -> None:
    assert says in answer(uri, name)


@pytest.mark.parametrize(("uri", "name"), [("s3://b", "connections_max"), ("file:///x", "fsync")])
def test_an_option_of_the_service_alone_names_it(uri: str, name: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"not an option for \w+:// but of ap.services"):
        Operator.from_uri(uri, **{name: 1})  # type: ignore[arg-type]


def test_an_unknown_word_is_answered_with_the_list_alone() -> None:
    assert answer("s3://b", "xyzzy") == "; there are "


@each_of(
    ("mode", "name", "says"),
    [("rb", "cache_type", "called 'policy'"), ("wb", "ContentType", "called 'content_type'"), ("rb", "key", "called")],
)
def test_what_opens_a_file_answers_too(mode: str, name: str, says: str) -> None:
    with pytest.raises(ConfigInvalid, match=says):
        open_file("s3://bucket/k", mode, **{name: 1})  # type: ignore[call-overload]


async def test_a_write_answers_too() -> None:
    with pytest.raises(TypeError, match="unknown option 'ContentType' for a write: it is called 'content_type' here"):
        await Operator.from_uri("memory://x").write("k", b"", ContentType="text/plain")  # type: ignore[call-arg]


def test_no_word_has_two_answers() -> None:
    """A sentence is for a word that is neither an option of ours nor a word for one."""
    rows = [row for _, options in elsewhere() for row in options.values()]
    words = {word.lower() for row in rows for word in row.words("fsspec", "boto3", "obstore", "other")}
    assert len(words) > 80
    assert not SENTENCES.keys() & words
    assert not SENTENCES.keys() & {row.name for row in rows}


def words_of_obstore() -> Iterator[str]:
    """The fields of its configurations and options, by its stubs."""
    spec = find_spec("obstore")
    assert spec is not None
    assert spec.origin
    stubs = Path(spec.origin).parent / "_store"
    for name in ("_aws.pyi", "_client.pyi", "_retry.pyi"):
        yield from re.findall(r"^    ([a-z]\w+): ", (stubs / name).read_text("utf-8"), re.MULTILINE)
    yield from ("config", "client_options", "retry_config", "credential_provider")


LIBRARIES = {
    "s3fs": [*inspect.signature(s3fs.S3FileSystem.__init__).parameters],
    "boto3": [
        *inspect.signature(boto3.session.Session.__init__).parameters,
        *inspect.signature(boto3.session.Session.client).parameters,
        *Config.OPTION_DEFAULTS,
    ],
    "obstore": [*words_of_obstore()],
}
# No options: the object itself, more keywords, and what a provider of credentials returns or a pause is made of.
NO_OPTIONS = {"self", "kwargs", "expires_at", "base"}


@each_of("library", LIBRARIES)
def test_every_word_of_other_libraries_is_answered(library: str) -> None:
    """With the versions that are installed; words that are ours too need no answer."""
    assert obstore.__version__
    words = {*LIBRARIES[library]} - NO_OPTIONS - {*store_options("s3")}
    assert len(words) > 15
    assert [word for word in sorted(words) if answer("s3://b", word) == "; there are "] == []
