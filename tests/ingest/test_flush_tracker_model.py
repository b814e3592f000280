"""F01–F06, F08, F10, F13: every interleaving Hypothesis can think of, against an oracle that recomputes
everything.
"""

from __future__ import annotations

from hypothesis import settings

from tests.support.ingest.tracker_machine import TrackerMachine

Test_F01_F02_F03_F04_F05_F06_F08_F13_any_schedule = TrackerMachine.TestCase
Test_F01_F02_F03_F04_F05_F06_F08_F13_any_schedule.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
