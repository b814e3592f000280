"""What a log costs on an object store, in money: before it runs (`estimate`), and while it does (`bill`).

Plain arithmetic over one table of prices (`prices.py`). It knows no store: whoever has counts (`Store.metrics()`, a plan)
hands them in.

May import: nothing of the log. Called by `logstore.metrics`, `logstore.ui` and the commands.
"""
