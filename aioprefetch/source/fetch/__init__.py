"""Batches: planned from the changes of a feed, divided among tasks, and cleaned up after their commit.

``source.FileSource`` is the front door; ``partitioning`` is also used without a state.
"""
