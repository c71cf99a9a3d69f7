"""One instance for each principal, what travels with it, and the words that it is made of."""

import base64
import json
import os
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import fsspec
import pytest
from aiohttp import BasicAuth, ClientTimeout
from botocore.credentials import ReadOnlyCredentials
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

import aioprefetch as ap
from aioprefetch.fsspec import AioPrefetchFileSystem, HttpFileSystem, S3FileSystem
from aioprefetch.fsspec.options import settings_of, wrapped
from tests.repository.source_tree import ROOT
from tests.unit.fsspec.s3_words import Bucket


class GivenSession:
    """As a session of aiobotocore: keys come from it."""

    async def get_credentials(self) -> Any:
        return self

    async def get_frozen_credentials(self) -> Any:
        return ReadOnlyCredentials("AKIDGIVEN", "a-secret-of-s3", "a-token-of-s3")


WORDS: dict[str, Any] = {
    "key": "AKIDEXAMPLE",
    "secret": "a-secret-of-s3",
    "token": "a-token-of-s3",
    "endpoint_url": "http://127.0.0.1:1",
    "client_kwargs": {"aws_session_token": "a-token-of-s3"},
}
SECRETS = ("a-secret-of-s3", "a-token-of-s3")
REDIRECTS = {"connect_timeout_seconds": 2, "follow_redirects": False}
RAW_KEY = b"a-customer-key-that-has-32-bytes"


def texts(fs: AioPrefetchFileSystem) -> list[str]:
    """All that is written of a file system somewhere."""
    return [
        pickle.dumps(fs).decode("latin-1"),
        fs.to_json(),
        repr(fs),
        str(fs.storage_options),
        json.dumps(fs.to_dict()),
        str(fs.place_of("bucket/k").operator),
    ]


class TestTravel:
    def test_no_text_has_a_secret(self) -> None:
        fs = S3FileSystem(**WORDS)
        assert [secret for secret in SECRETS for text in texts(fs) if secret in text] == []

    @pytest.mark.parametrize(
        "words", [{"sse_customer_key": RAW_KEY}, {"s3_additional_kwargs": {"SSECustomerKey": RAW_KEY}}]
    )
    def test_no_text_has_a_customer_key_that_was_given_as_bytes(self, words: dict[str, Any]) -> None:
        fs = S3FileSystem(endpoint_url="https://127.0.0.1:1", **words)
        shown = (RAW_KEY.decode(), base64.b64encode(RAW_KEY).decode())
        assert [secret for secret in shown for text in texts(fs) if secret in text] == []
        assert pickle.loads(pickle.dumps(fs)) is fs
        assert fsspec.AbstractFileSystem.from_json(fs.to_json()) is fs

    @pytest.mark.parametrize(
        "name",
        ["secret", "token", "account_key", "sas_token", "client_secret", "connection_string", "service_account_key"],
    )
    def test_no_option_that_is_a_secret_is_shown(self, name: str) -> None:
        """Of any store: those of clouds need whole keys to be opened."""
        options = wrapped({name: "a-secret"})
        assert "a-secret" not in repr(options) + str(options)
        assert b"a-secret" not in pickle.dumps(options)

    def test_secrets_in_lists_are_hidden_and_other_bytes_refused(self) -> None:
        fs = HttpFileSystem(auth=["user", "a-password"])
        assert [text for text in (pickle.dumps(fs).decode("latin-1"), fs.to_json()) if "a-password" in text] == []
        assert "a-password" not in repr(fs.storage_options)
        with pytest.raises(ap.InvalidType, match="must be a string, not bytes") as refused:
            S3FileSystem(key="AKID", secret=b"a-secret-of-s3")
        assert "a-secret" not in str(refused.value)

    def test_copies_in_one_process_are_one(self) -> None:
        fs = S3FileSystem(**WORDS)
        assert pickle.loads(pickle.dumps(fs)) is fs
        assert fsspec.AbstractFileSystem.from_json(fs.to_json()) is fs
        assert fsspec.AbstractFileSystem.from_dict(fs.to_dict()) is fs
        over = AioPrefetchFileSystem(ap.Operator.from_uri("memory://copies"))
        assert pickle.loads(pickle.dumps(over)) is over
        assert fsspec.AbstractFileSystem.from_json(over.to_json()) is over

    def test_secrets_travel_where_that_is_asked_for(self) -> None:
        fs = S3FileSystem(**WORDS, pickle_secrets=True)
        assert all(secret in pickle.dumps(fs).decode("latin-1") for secret in SECRETS)
        assert "a-secret-of-s3" in fs.to_json()
        assert "a-secret-of-s3" not in fs.to_json(include_password=False)
        assert "a-secret-of-s3" not in repr(fs) + str(fs.storage_options)

    @pytest.mark.parametrize(
        ("words", "found"),
        [
            ({}, "give it as 'env:NAME'"),
            ({"fallback": "ambient"}, "this process has none of its own"),
            ({"pickle_secrets": True}, "Unavailable"),  # The keys are there, and the store is not.
            ({"key": "env:ID_ELSEWHERE", "secret": "env:SECRET_ELSEWHERE", "token": None}, "Unavailable"),
        ],
    )
    def test_another_process_has_what_it_needs_or_says_so(self, words: dict[str, Any], found: str) -> None:
        options = {name: value for name, value in WORDS.items() if name not in ("token", "client_kwargs")}
        fs = S3FileSystem(**options | words, config_kwargs={"retries": {"total_max_attempts": 1}})
        read = "pickle.load(sys.stdin.buffer).cat('bucket/k')"
        program = f"import sys, pickle\ntry: {read}\nexcept Exception as e: print(repr(e))"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        environment |= {"ID_ELSEWHERE": "AKID", "SECRET_ELSEWHERE": "s", "AWS_EC2_METADATA_DISABLED": "true"}
        run = subprocess.run(
            [sys.executable, "-c", program],
            input=pickle.dumps(fs),
            cwd=ROOT,
            env=environment | {"HOME": "/nowhere"},
            capture_output=True,
            check=False,
        )
        assert found in run.stdout.decode(), run.stderr.decode()

    def test_json_of_another_process_names_no_operator_here(self) -> None:
        over = AioPrefetchFileSystem(ap.Operator.from_uri("memory://elsewhere"))
        blob = over.to_dict() | {"op": "operator:00:11"}
        with pytest.raises(ap.ConfigInvalid, match="names an operator of another process"):
            fsspec.AbstractFileSystem.from_dict(blob)


class TestPrincipals:
    def test_other_keys_are_another_instance(self) -> None:
        fs = S3FileSystem(**WORDS)
        assert S3FileSystem(**WORDS) is fs
        for other in ({"secret": "other"}, {"key": "OTHER"}, {"endpoint_url": "http://127.0.0.1:2"}):
            assert S3FileSystem(**WORDS | other) not in (fs,)

    def test_keys_of_the_environment_count_as_they_are_now(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "FIRST")
        first = S3FileSystem()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SECOND")
        assert S3FileSystem() != first
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "FIRST")
        assert S3FileSystem() is first

    def test_a_session_is_asked_for_keys(self, bucket: Bucket) -> None:
        words = {"session": GivenSession(), "client_kwargs": bucket.words["client_kwargs"]}
        fs = S3FileSystem(**words)
        assert fs.exists(f"{bucket.name}/top")
        assert {request.access_key_id for request in bucket.server.requests} == {"AKIDGIVEN"}
        assert [secret for secret in SECRETS for text in texts(fs) if secret in text] == []
        assert pickle.loads(pickle.dumps(fs)) is fs
        assert fsspec.AbstractFileSystem.from_json(fs.to_json()) is fs
        assert S3FileSystem(**words) is fs
        assert S3FileSystem(**words | {"session": GivenSession()}) not in (fs,)
        fs.close()

    def test_operators_that_look_alike_are_different(self) -> None:
        one, other = (
            ap.Operator.from_uri("s3://bucket", access_key_id=name, secret_access_key="s") for name in ("A", "B")
        )
        assert repr(one) == repr(other)
        assert AioPrefetchFileSystem(one) != AioPrefetchFileSystem(other)
        assert AioPrefetchFileSystem(one) is AioPrefetchFileSystem(op=one)
        assert AioPrefetchFileSystem(one.layer(ap.layers.RetryLayer(attempts_max=1))) != AioPrefetchFileSystem(one)

    def test_files_of_a_url_share_the_runtime(self) -> None:
        """With ``ap.sync.open`` too."""
        words: dict[str, Any] = {
            "access_key_id": "A",
            "secret_access_key": "S",
            "endpoint_url": "http://127.0.0.1:1",
            "region": "r",
        }
        operator = S3FileSystem(**words).place_of("bucket/k").operator
        with ap.sync.open("s3://bucket/k", **words) as file:
            assert file.operator.service is operator.service

    def test_a_url_leads_to_one_instance(self, random_name: Callable[[], str]) -> None:
        url = f"memory://{random_name()}"
        made = [AioPrefetchFileSystem(url) for _ in range(20)]
        assert {id(fs) for fs in made} == {id(made[0])}
        assert AioPrefetchFileSystem(url, block_bytes=1 << 20) is not made[0]
        assert AioPrefetchFileSystem(url, attempts_max=1) is not made[0]
        assert AioPrefetchFileSystem(f"{url}x") is not made[0]
        assert pickle.loads(pickle.dumps(made[0])) is made[0]

    def test_the_options_beside_a_url_are_those_of_its_scheme(self, bucket: Bucket) -> None:
        words = {**bucket.words, "s3_additional_kwargs": {"StorageClass": "STANDARD_IA"}, "version_aware": True}
        fs = AioPrefetchFileSystem(f"s3://{bucket.name}", **words)
        fs.pipe("new", b"1")
        written = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].get_object(bucket.name, "new")
        assert written is not None
        assert written.storage_class == "STANDARD_IA"
        assert fs.cat_file("new?versionId=null") == b"1"
        fs.close()


class TestSlips:
    def test_of_the_pen_are_answered_with_the_words_of_that_place(self) -> None:
        with pytest.raises(ap.ConfigInvalid, match="did you mean 'anon'"):
            S3FileSystem(anno=True)
        fs = S3FileSystem(anon=True)
        with pytest.warns(UserWarning, match="for a read: it is called 'block_bytes' here") as warned:
            fs.open("bucket/k", blocksize=3)
        assert "prefetch_blocks" in str(warned[0].message)
        assert "storage_class" not in str(warned[0].message)


class TestWords:
    @pytest.mark.parametrize(
        ("words", "store"),
        [
            ({"anon": True}, {"anonymous": True}),
            ({"anon": False, "use_ssl": True, "default_fill_cache": False}, {}),
            ({"username": "u", "password": "p"}, {"access_key_id": "u", "secret_access_key": "p"}),
            ({"use_ssl": False}, {"allow_http": True}),
            ({"profile": "p", "requester_pays": True}, {"profile": "p", "request_payer": True}),
            ({"client_kwargs": {"region_name": "r", "verify": "ca.pem"}}, {"region": "r", "ca_bundle": "ca.pem"}),
            ({"max_concurrency": 3, "fixed_upload_size": True, "local_expiry_check": True}, {"concurrency": 3}),
            (
                {"config_kwargs": {"s3": {"addressing_style": "virtual"}, "retries": {"max_attempts": 2, "mode": "x"}}},
                {"addressing_style": "virtual", "attempts_max": 3},
            ),
            ({"config_kwargs": {"retries": {"max_attempts": 0}}}, {"attempts_max": 1}),
            ({"config_kwargs": {"retries": {"total_max_attempts": 2, "max_attempts": 8}}}, {"attempts_max": 2}),
            ({"config_kwargs": {"read_timeout": 3, "signature_version": "s3v4"}}, {"read_timeout_seconds": 3}),
            ({"s3_additional_kwargs": {"RequestPayer": "requester"}}, {"request_payer": True}),
            ({"memory_bytes": 1 << 24, "signing": "presigned"}, {"memory_bytes": 1 << 24, "signing": "presigned"}),
        ],
    )
    def test_of_s3fs_are_options_of_ours(self, words: dict[str, Any], store: dict[str, Any]) -> None:
        assert settings_of("s3", words).store == store

    @pytest.mark.parametrize(
        ("words", "store"),
        [
            ({"token": "anon", "access": "read_only", "project": "p"}, {"anonymous": True}),
            ({"token": "google_default", "requester_pays": False, "check_connection": True}, {}),
        ],
    )
    def test_of_gcsfs_are_options_of_ours(self, words: dict[str, Any], store: dict[str, Any]) -> None:
        assert settings_of("gs", words).store == store
        for word in ("access", "requester_pays"):
            with pytest.raises(ap.ConfigInvalid, match=f"unknown option '{word}'"):
                settings_of("gs", {word: True})

    @pytest.mark.parametrize(
        ("words", "store"),
        [
            ({"client_kwargs": {"trust_env": True, "requote_redirect_url": False}}, {}),
            ({"client_kwargs": {"trust_env": False}}, {"proxies": {}}),
            ({"client_kwargs": {"timeout": ClientTimeout(total=3600)}, "encoded": True, "ssl": None}, {}),
            (
                {"client_kwargs": {"timeout": ClientTimeout(sock_connect=2, sock_read=3)}},
                {"connect_timeout_seconds": 2, "read_timeout_seconds": 3},
            ),
            ({"timeout": ClientTimeout(connect=2), "allow_redirects": False, "simple_links": False}, REDIRECTS),
            (
                {"headers": {"B": "2", "Accept-Encoding": "identity"}, "client_kwargs": {"headers": {"A": "1"}}},
                {"headers": {"A": "1", "B": "2"}},
            ),
            ({"headers": {"Accept-Encoding": "identity"}}, {}),
            ({"headers": "A: 1"}, {"headers": "A: 1"}),  # The service refuses it.
        ],
    )
    def test_of_aiohttp_are_options_of_ours(self, words: dict[str, Any], store: dict[str, Any]) -> None:
        assert settings_of("https", words).store == store

    def test_the_password_of_aiohttp_is_a_secret(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Later versions of aiohttp want the header instead.
            auth = BasicAuth("user", "pass-word")
        for words in ({"auth": auth}, {"client_kwargs": {"auth": auth}}):
            user, password = settings_of("https", wrapped(words)).store["auth"]
            assert (user, password.reveal()) == ("user", "pass-word")
            fs = HttpFileSystem(**words)
            assert "pass-word" not in f"{fs!r} {fs.to_json()} {pickle.dumps(fs)!r} {fs.storage_options}"

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ({"ssl": False}, "unknown option 'ssl' for https://: it is called 'ca_bundle'"),
            ({"client_kwargs": {"timeout": 10}}, "for client_kwargs: s3:// and http"),
            ({"cookies": {"a": "b"}}, "headers={'Cookie': 'name=value'}"),
            ({"client_kwargs": {"cokies": {}}}, "unknown option 'cokies' for client_kwargs"),
            ({"trust_env": False, "proxies": {"http": "http://host:1"}}, "contradicts"),
        ],
    )
    def test_of_aiohttp_without_a_meaning_are_refused(self, words: dict[str, Any], message: str) -> None:
        with pytest.raises(ap.ConfigInvalid, match=re.escape(message)) as refused:
            HttpFileSystem(**words)
        assert "access_key_id" not in str(refused.value)

    @pytest.mark.parametrize(
        ("words", "reader"),
        [
            ({"default_block_size": 1 << 20}, {"block_bytes": 1 << 20}),
            ({"default_cache_type": "none"}, {"policy": "random"}),
            ({"default_cache_type": "readahead"}, {"policy": "adaptive"}),
            ({"default_cache": "none"}, {"policy": "random"}),
            ({"default_cache_type": "all", "keep_behind": True}, {"policy": "whole-file", "keep_behind": True}),
            ({"policy": "parquet"}, {"policy": "parquet"}),
            ({"default_block_size": 0}, {"policy": "sequential"}),
            ({"default_block_size": 0, "default_cache_type": "all"}, {"policy": "whole-file"}),
        ],
    )
    def test_of_caches_are_policies(self, words: dict[str, Any], reader: dict[str, Any]) -> None:
        assert settings_of("s3", words).reader == reader

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ({"session": object()}, "credentials must be a session"),
            ({"session": GivenSession(), "key": "a", "secret": "b"}, "beside keys"),
            ({"cache_regions": True}, "option region"),
            ({"get_client": object()}, "aioprefetch's own transport"),
            ({"endpont_url": "x"}, "did you mean 'endpoint_url'"),
            ({"client_kwargs": {"verify": False}}, "called 'ca_bundle'"),
            ({"client_kwargs": {"foo": 1}}, "unknown option 'foo' for client_kwargs"),
            ({"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}}, "for config_kwargs"),
            ({"config_kwargs": {"signature_version": "s3"}}, "signed with version 4"),
            ({"s3_additional_kwargs": {"ACL": "public-read"}}, "the bucket's policy"),
            ({"default_cache_type": "snapshot"}, "must be one of readahead"),
            (
                {"endpoint_url": "http://127.0.0.1:1", "client_kwargs": {"endpoint_url": "http://127.0.0.1:2"}},
                "contradicts",
            ),
        ],
    )
    def test_without_a_meaning_are_refused(self, words: dict[str, Any], message: str) -> None:
        with pytest.raises(ap.ConfigInvalid, match=message.replace("(", r"\(")):
            S3FileSystem(**words)

    def test_a_file_system_over_an_operator_has_no_options_of_stores(self) -> None:
        with pytest.raises(ap.ConfigInvalid, match="unknown option 'anon' for a file system over an operator"):
            AioPrefetchFileSystem(ap.Operator.from_uri("memory://x"), anon=True)
        with pytest.raises(ap.ConfigInvalid, match="needs an operator"):
            AioPrefetchFileSystem()
        with pytest.raises(ap.ConfigInvalid, match="op must be an Operator"):
            AioPrefetchFileSystem(5)  # type: ignore[arg-type]  # that is the error

    def test_a_url_may_stand_for_an_operator(self) -> None:
        fs = AioPrefetchFileSystem("memory://by-url/root", memory_bytes=1 << 24)
        fs.pipe("k", b"1")
        assert ap.sync.run(ap.Operator.from_uri("memory://by-url").read("root/k")) == b"1"
        fs.close()
