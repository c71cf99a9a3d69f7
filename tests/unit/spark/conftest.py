"""What these tests load before the first of them runs: an import takes longer than a loop may be held."""

import pyarrow as pa

pa.array([0])  # The first array imports pandas, where it is installed.
