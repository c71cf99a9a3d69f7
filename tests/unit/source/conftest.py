"""What these tests load before the first of them runs: an import takes longer than a loop may be held."""

import pyarrow as pa

import aioprefetch.lance  # noqa: F401 - the first file of Lance would import it

pa.array([0])  # The first array imports pandas, where it is installed.
