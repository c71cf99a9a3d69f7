"""The options of an operator for a server of S3 that a test has started."""

from typing import Any


def options_of(server: Any) -> dict[str, Any]:
    """Where it is, and its keys: of a ``FaultServer``, moto's or rclone's."""
    names = ("endpoint_url", "region", "access_key_id", "secret_access_key")
    return {name: getattr(server, name) for name in names}
