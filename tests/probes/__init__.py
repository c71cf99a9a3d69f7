"""What looks into a process while it runs, and how long a search goes on.

`loop_lag`: does our code hold an event loop? `calls`: how many Python calls is it? `descriptors`: is a file left open?
`turns`: does another task get its turn? `error_walk`: does a secret stand on an error? `programs`: what does a fresh
process do? `search`: seeds until the time is over.
"""
