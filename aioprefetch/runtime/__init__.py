"""What is live behind an Operator, for one process and one event loop.

``runtime`` holds it together: the budget, the buffers, the supervisor that owns background tasks, the clock and the
random generator. ``statistics`` counts, ``events`` names what is counted, ``options`` says how much of each there is.
"""
