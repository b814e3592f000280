"""Connections: frames in and out, memory for requests, deadlines of long polls, fairness between clients.

May import: `wire`. Called by `handlers` and by `broker_shim.server`.
"""
