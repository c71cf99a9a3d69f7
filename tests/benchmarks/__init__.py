"""Benchmarks: run by ``make bench``, and each job once with small objects by ``make test-full``.

| module | what stands there |
| --- | --- |
| `jobs` | the table of jobs: contestants, columns, what is wanted |
| `clients`, `our_clients` | the table of clients: each library as its manual makes it |
| `works`, `tables`, `processes`, `cold_process`, `spark` | what clients are asked to do, and how it is timed |
| `job`, `runner`, `sample`, `meter` | a row of the table; its rounds; one contestant's process and what it cost |
| `simulator`, `nginx`, `access_log`, `content` | the store at a distance, what it saw, and its objects |
| `run`, `report`, `records`, `page`, `plots` | the command line, what it shows and keeps, and the pages made of that |
| `source_state` | by hand: what a stream of millions of files costs its driver |
"""
