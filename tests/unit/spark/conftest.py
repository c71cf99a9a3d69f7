"""What the first test of these would pay for."""

import pyarrow as pa

pa.array([0])  # The first array imports pandas, where it is installed.
