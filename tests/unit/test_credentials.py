"""Secrets: hidden wherever they might be shown, and references in every pickle."""

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import asdict, dataclass

import pytest

from aioprefetch.credentials import Secret

CANARY = "hunter2-canary"


@dataclass(frozen=True)
class Holder:
    """A configuration with a secret."""

    key: Secret


def test_no_way_to_print_it() -> None:
    secret = Secret(CANARY)
    shown = [repr(secret), str(secret), f"{secret}", repr(Holder(secret)), repr(asdict(Holder(secret))), repr([secret])]
    assert not [text for text in shown if CANARY in text]
    assert secret.reveal() == CANARY


def test_a_pickle_holds_no_literal_and_finds_it_again_here() -> None:
    secret = Secret(CANARY)
    data = pickle.dumps(secret)
    assert CANARY.encode() not in data
    twin = pickle.loads(data)
    assert twin.reveal() == CANARY
    assert twin == secret
    assert hash(twin) == hash(secret)
    again = pickle.loads(pickle.dumps(twin))
    assert again.reveal() == CANARY
    assert copy.deepcopy(secret) == secret


def test_elsewhere_a_literal_is_gone() -> None:
    """In another process the literal is not to be had, and nothing pretends otherwise."""
    data = pickle.dumps((Secret(CANARY), Secret("another")))
    script = (
        "import pickle, sys; a, b = pickle.loads(bytes.fromhex(sys.argv[1]));"
        "print(a.reveal(), b.reveal(), a == b, a.fingerprint() == b.fingerprint())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, data.hex()], capture_output=True, text=True, check=True, cwd=os.getcwd()
    )
    assert done.stdout.split() == ["None", "None", "False", "False"]


def test_a_variable_is_looked_up_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret("env:AIOPREFETCH_TEST_SECRET")
    monkeypatch.delenv("AIOPREFETCH_TEST_SECRET", raising=False)
    assert secret.reveal() is None
    monkeypatch.setenv("AIOPREFETCH_TEST_SECRET", CANARY)
    assert secret.reveal() == CANARY
    assert not secret.is_literal
    assert repr(secret) == "Secret(env:AIOPREFETCH_TEST_SECRET)"
    assert CANARY.encode() not in pickle.dumps(secret)
    assert pickle.loads(pickle.dumps(secret)).reveal() == CANARY


def test_fingerprints_tell_secrets_apart_and_reveal_none() -> None:
    assert Secret("a").fingerprint() == Secret("a").fingerprint() != Secret("b").fingerprint()
    assert CANARY not in Secret(CANARY).fingerprint()


def test_of() -> None:
    secret = Secret("x")
    assert Secret.of(secret) is secret
    assert Secret.of(None) is None
    assert Secret.of("") is None
    assert Secret.of("x") == secret != Secret("y")
    assert secret != "x"
