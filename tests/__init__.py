"""A package, so that tests can import what they share by its full name (`tests.repository.source_tree`)."""
