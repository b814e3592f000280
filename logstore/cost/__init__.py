"""What a log costs on an object store, in money: before it runs (`estimate`), and while it does (`bill`).

Plain arithmetic over one table of prices (`prices.py`). It imports nothing of the log, and knows no store: whoever has
counts (`Store.metrics()`, a plan) hands them in. `logstore.metrics` and the command line call it.
"""
