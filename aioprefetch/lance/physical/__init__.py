"""Pages of single columns of version 2.0: what to read of them, and how to decode it into given memory."""
