"""pyspark's daemon, which imports what its workers use before it forks them.

Spark forks a process for each plan of a read and for each core. Each of them would import pyarrow, pandas and the
package, which is most of what it does in a test. The jobs that run as programs of their own go without this.
"""

import importlib
import pkgutil

from pyspark.daemon import manager

import aioprefetch.source
import aioprefetch.spark

for name in ("pandas", "pyarrow.compute", "pyarrow.parquet", "pyspark.sql.worker.plan_data_source_read"):
    importlib.import_module(name)
for package in (aioprefetch.source, aioprefetch.spark):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)

if __name__ == "__main__":
    manager()
