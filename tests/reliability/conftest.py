"""The services that a row of faults is tested over, and an environment without credentials of this machine.

What the tests share is imported late: other folders let pytest rewrite the asserts of the modules behind it, which has
to be said before these are imported.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.reliability.scripted import Serve


@pytest.fixture(autouse=True)
def no_ambient_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No identity, endpoint or region of this machine."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture(scope="session", autouse=True)
def warm() -> None:
    """No test is the first to use a service."""
    from tests.reliability.scripted import warm_up

    asyncio.run(warm_up())


@pytest.fixture(params=["s3", "http"])
def serve(request: pytest.FixtureRequest) -> Serve:
    """`serving`, over s3 and over http."""
    from tests.reliability.scripted import serve_over

    return serve_over(request.param)


@pytest.fixture
def serve_s3() -> Serve:
    """`serving` over s3, for what http has no word for."""
    from tests.reliability.scripted import serve_over

    return serve_over("s3")


@pytest.fixture
def serve_http() -> Serve:
    """`serving` over http, where it differs."""
    from tests.reliability.scripted import serve_over

    return serve_over("http")
