"""Show the jobs of all homes of the user on one board, in the terminal and in a browser, and act on them.

`query` reads, `details` shows one job, `actions` changes jobs through the services of other packages. Nothing here
writes to a store itself, and nothing decides what a job may do.
"""
