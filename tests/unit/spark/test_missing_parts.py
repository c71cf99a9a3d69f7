"""Without PySpark, or with one that is too old: what is missing is said, and other sources of Spark's keep working."""

import json

from tests.probes.programs import run_program

# Modules that cannot be imported, as if they were not there.
WITHOUT = """
import importlib.abc, json, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if any(name == one or name.startswith(one + ".") for one in {hidden!r}):
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Hidden())
"""
ENTRY_POINTS = """
import aioprefetch.spark
found = {}
for name in ("read", "register", "stream", "AioPrefetchDataSource"):
    try:
        getattr(aioprefetch.spark, name)
    except ImportError as error:
        found[name] = [type(error).__name__, str(error)]
print(json.dumps(found))
"""
LOOK_UP = """
import runpy, sys
before = set(sys.modules)
found = runpy.run_path("aioprefetch/spark/registration.py")["DefaultSource"]
loaded = [one for one in set(sys.modules) - before if one.split(".")[0] in ("aioprefetch", "pyarrow", "numpy")]
source = found({"path": "/data"})
said = []
for ask in (source.schema, lambda: source.reader(None), lambda: source.streamReader(None)):
    try:
        ask()
    except ImportError as error:
        said.append(type(error).__name__ + str(error))
print(json.dumps([found.name(), sorted(loaded), said]))
"""


def test_entry_points_without_pyspark_name_the_extra() -> None:
    found = json.loads(run_program(WITHOUT.format(hidden=["pyspark"]) + ENTRY_POINTS))
    assert set(found) == {"read", "register", "stream", "AioPrefetchDataSource"}
    for name, (kind, message) in found.items():
        assert kind == "MissingDependency"
        assert f"aioprefetch.spark.{name} needs pyspark" in message
        assert "pip install 'aioprefetch[spark]'" in message


def test_an_error_names_an_old_pyspark() -> None:
    found = json.loads(run_program(WITHOUT.format(hidden=["pyspark.sql.streaming.datasource"]) + ENTRY_POINTS))
    assert "needs pyspark.sql.streaming.datasource" in found["read"][1]
    assert "PySpark 4.2 or later" in found["read"][1]


def test_the_look_up_of_sources_loads_nothing_of_ours_and_survives_what_is_missing() -> None:
    name, loaded, said = json.loads(run_program(WITHOUT.format(hidden=["pyarrow"]) + LOOK_UP))
    assert (name, loaded) == ("aioprefetch", [])
    assert len(said) == 3
    for one in said:
        assert one.startswith("MissingDependency")
        assert "needs pyarrow: pip install 'aioprefetch[spark]'" in one
