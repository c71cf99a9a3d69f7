"""The checks behind `AccessorSuite` and `ReaderSuite`, one module per operation."""
