"""Many processes on one object store, in simulated time: the real engine, with every thread, clock, request and crash in the
hand of one seed. `python -m tests.simulation --help` says how to run it and how to replay a seed."""
