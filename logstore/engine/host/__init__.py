"""Time, memory and threads: clock, budget, circuit breaker, task pool, fan-out. Nothing here knows what a log is.

May import: `errors`. May be called by every room of the engine.
"""
