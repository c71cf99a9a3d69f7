"""Pages of version 2.0: planning their reads, and decoding their rows into the buffers of a batch."""
