"""Keys from a provider that the caller gives: a session of boto3, botocore or aiobotocore, credentials, a function.

A function has no parameters and returns keys, or an awaitable of them, in the words of botocore (``access_key``,
``secret_key``, ``token``), of AWS (``AccessKeyId``, ``SecretAccessKey``, ``SessionToken``, ``Expiration``), or of
obstore (``access_key_id``, ``secret_access_key``, ``token``, ``expires_at``). What blocks runs on a thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from aioprefetch.credentials import CredentialsProvider
from aioprefetch.errors import ConfigInvalid, Error, PermissionDenied, redact
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3.errors import Reported
from aioprefetch.services.s3.options import are_credentials, is_session
from aioprefetch.services.s3.sigv4 import AccessKeys

_KEY_ID = ("access_key_id", "AccessKeyId", "access_key", "aws_access_key_id")
_SECRET = ("secret_access_key", "SecretAccessKey", "secret_key", "aws_secret_access_key")
_TOKEN = ("session_token", "SessionToken", "token", "Token", "aws_session_token")
_END = ("expires_at", "Expiration", "expiration", "expiry_time")


class GivenKeys:
    """The keys of one provider within a runtime: ``ask`` as often as needed."""

    def __init__(self, provider: CredentialsProvider, runtime: Runtime) -> None:
        self._provider = provider
        self._runtime = runtime
        self._credentials: Any = None
        self._end: datetime | None = None
        self._life_seconds = 0.0

    async def ask(self) -> AccessKeys:
        """The keys as they are now. Raises ``PermissionDenied`` for a provider that has none, or that fails.

        Where it fails with an ``OSError`` another attempt may help. Errors of botocore are raised as they are.
        """
        given = self._provider.given
        try:
            found = given
            if is_session(given):
                found = await self._called(given.get_credentials)
            elif not are_credentials(given):
                found = await self._called(given)
            self._credentials = found if are_credentials(found) else None
            if self._credentials is not None:
                found = await self._called(found.get_frozen_credentials)
        except Error:
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("botocore", "aiobotocore"):
                raise  # It is explained as all of theirs are.
            raise PermissionDenied(
                f"the provider of credentials, {self._provider!r}, raised {type(error).__name__}",
                status="temporary" if isinstance(error, OSError) else "permanent",
            ) from Reported(f"{type(error).__qualname__}: {redact(str(error))}")
        if found is None:
            raise PermissionDenied(f"the provider of credentials, {self._provider!r}, has none")
        self._end = None if self._credentials is not None else _end_of(found)
        if self._end is not None:
            self._life_seconds = (self._end - datetime.now(UTC)).total_seconds()
        return keys_of(found)

    def is_ending(self, within_seconds: int) -> bool:
        """Whether the keys end within this time, or within half of their life. Those without an end never do."""
        is_needed = getattr(self._credentials, "refresh_needed", None)
        if is_needed is not None:
            return bool(is_needed(within_seconds))
        if self._end is None:
            return False
        return (self._end - datetime.now(UTC)).total_seconds() < min(within_seconds, self._life_seconds / 2)

    async def _called(self, call: Callable[[], Any]) -> Any:
        """The result of code of the caller: on the loop where it is asynchronous, else on a thread."""
        is_asynchronous = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
            getattr(call, "__call__", None)  # noqa: B004 - whether it is a coroutine function, not whether it is there
        )
        result = call() if is_asynchronous else await self._runtime.run_blocking(call)
        return await result if inspect.isawaitable(result) else result


def keys_of(found: Any) -> AccessKeys:
    """Keys in any of the three forms. Raises ``ConfigInvalid``, which names what is missing and shows nothing."""
    key_id, secret, token = (_value(found, names) for names in (_KEY_ID, _SECRET, _TOKEN))
    for name, value in (("access_key_id", key_id), ("secret_access_key", secret)):
        if not isinstance(value, str) or not value:
            raise ConfigInvalid(f"the provider of credentials returned a {type(found).__name__} without {name}")
    if token is not None and not isinstance(token, str):
        raise ConfigInvalid(f"the provider of credentials returned a token that is a {type(token).__name__}")
    return AccessKeys(key_id, secret, token or None)


def _end_of(found: Any) -> datetime | None:
    end = _value(found, _END)
    if isinstance(end, str):
        try:
            end = datetime.fromisoformat(end)
        except ValueError:
            end = ""
    if end is None or (isinstance(end, datetime) and end.tzinfo is not None):
        return end
    raise ConfigInvalid(
        "the provider of credentials returned an invalid end: expires_at must be a datetime with a time zone"
    )


def _value(found: Any, names: tuple[str, ...]) -> Any:
    if isinstance(found, Mapping):
        inside = found.get("Credentials")  # As STS responds.
        values: Mapping[str, Any] = inside if isinstance(inside, Mapping) else found
        return next((values[name] for name in names if values.get(name) is not None), None)
    return next((value for name in names if (value := getattr(found, name, None)) is not None), None)
