"""A program as a user's: no import of aioprefetch, no ``register``. Reads what its arguments name, and prints rows."""

import importlib
import json
import sys

from pyspark.sql import SparkSession


def main(settings: dict[str, str], paths: list[str]) -> None:
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    assert "aioprefetch" not in sys.modules
    found = [
        sorted(tuple(row) for row in spark.read.format("aioprefetch").option("columns", "id").load(path).collect())
        for path in paths
    ]
    module = importlib.import_module("pyspark_aioprefetch")
    seen = {"rows": found, "module": module.__file__, "package": importlib.import_module("aioprefetch").__file__}
    sys.stdout.write(f"\n{json.dumps(seen)}\n")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
