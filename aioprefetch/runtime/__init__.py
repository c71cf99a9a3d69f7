"""The live parts of an Operator, for one process and one event loop.

``runtime`` holds it together: the budget, the buffers, the supervisor that owns background tasks, the clock and the
random generator. ``statistics`` counts, ``events`` names the counted events, ``options`` are the limits.
"""
