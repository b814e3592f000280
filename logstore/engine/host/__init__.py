"""Time, memory and threads: clock, budget, circuit breaker, task pool, counters. Nothing here knows what a log is.

May import: `errors`, `objects`. May be called by every room of the engine.
"""
