"""The checks behind `AccessorSuite` and `ReaderSuite`, by operation."""
