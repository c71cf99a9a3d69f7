"""The requests of libraries, counted by the store: ``python -m tests.libraries.requests`` prints the tables."""
