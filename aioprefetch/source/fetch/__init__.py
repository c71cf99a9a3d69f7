"""What is fetched when: batches planned from what was found, divided among tasks, and cleaned up after.

``source.FileSource`` is the front door; ``partitioning`` alone is used without a state, too.
"""
