"""Commands as a user runs them, in this process, and a bucket for them."""

import json
from collections.abc import Callable
from typing import Any

from click.testing import CliRunner, Result

from aioprefetch.cli.app import app
from aioprefetch.operator.operator import Operator
from aioprefetch.sync import BlockingOperator
from aioprefetch.testing import CountingS3Server


def run(*arguments: object, code: int = 0, stdin: bytes | None = None) -> Result:
    """Run a command, which must end with an exit code."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="aioprefetch", input=stdin)
    assert result.exit_code == code, (result.exit_code, result.output, result.exception)
    return result


def lines(*arguments: object, code: int = 0) -> list[str]:
    """The lines that a command prints."""
    return run(*arguments, code=code).stdout.splitlines()


def objects(*arguments: object, code: int = 0) -> list[Any]:
    """The JSON objects that a command prints, one on each line."""
    return [json.loads(line) for line in lines(*arguments, code=code)]


class Bucket:
    """A bucket of a server of S3: its URLs, the options that lead commands to it, and the objects in it."""

    def __init__(self, server: CountingS3Server, random_name: Callable[[], str], setenv: Any) -> None:
        self.server, self.name = server, random_name()
        server.create_bucket(self.name)
        # Command lines are public: keys come from the environment.
        setenv("AIOPREFETCH_ACCESS_KEY_ID", server.access_key_id)
        setenv("AIOPREFETCH_SECRET_ACCESS_KEY", server.secret_access_key)
        setenv("AIOPREFETCH_ENDPOINT_URL", server.endpoint_url)
        setenv("AIOPREFETCH_REGION", server.region)

    def url(self, path: str = "") -> str:
        """The URL of an object."""
        return f"s3://{self.name}/{path}"

    def put(self, **contents: bytes) -> None:
        """Write objects; two underscores in a name are a slash."""
        with BlockingOperator(Operator.from_uri(f"s3://{self.name}")) as operator:
            for name, content in contents.items():
                operator.write(name.replace("__", "/"), content)
        self.server.reset()

    def paths(self) -> list[str]:
        """All paths."""
        with BlockingOperator(Operator.from_uri(f"s3://{self.name}")) as operator:
            return [entry.path for entry in operator.list(recursive=True)]
