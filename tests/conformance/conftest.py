"""Gives each conformance class its stacks, and lets pytest explain asserts in the shipped suites."""

import pytest

pytest.register_assert_rewrite("aioprefetch.testing.conformance", "aioprefetch.testing.oracle")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of a class once for every stack that the class names."""
    stacks = getattr(metafunc.cls, "stacks", None)
    if stacks and "operator" in metafunc.fixturenames:
        metafunc.parametrize("operator", stacks, indirect=True)
