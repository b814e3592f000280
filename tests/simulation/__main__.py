"""Run the simulation, or replay a seed.

    python -m tests.simulation --total 1000000            # seed after seed until so many requests were handled
    python -m tests.simulation --seed 17 --steps 2000     # one run; a failing one says which command replays it
    python -m tests.simulation --seed 17 --trace          # with everything that happened

Ends with 1 if something was violated, after printing the seed, the smallest scenario that was found and its trace.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from collections import Counter
from dataclasses import replace

from tests.simulation.scenario import ROLES, TROUBLES, Result, Scenario, shrink, simulate
from tests.simulation.world import RATES

_TRACE_LINES = 120
_HANG_S = 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="the only one, or with --total the first")
    parser.add_argument("--steps", type=int, default=2_000, help="requests in one run, before its finale")
    parser.add_argument("--total", type=int, help="requests in all runs together")
    parser.add_argument(
        "--without", default="", help=f"switch off, by comma: {', '.join((*RATES, *TROUBLES))}"
    )
    parser.add_argument("--machines", help="only these, by comma")
    parser.add_argument("--writers", default="", help="these, by comma, instead of those that a seed draws")
    parser.add_argument("--trace", action="store_true", help="print everything that happened")
    parser.add_argument("--digest", action="store_true", help="print a digest of the trace of each run")
    parser.add_argument(
        "--survey", action="store_true", help="go on after a violation, and count them by kind"
    )
    parser.add_argument("--no-shrink", action="store_true", help="print the failing run as it was")
    args = parser.parse_args()
    without = frozenset(filter(None, args.without.split(",")))
    if unknown := without - {*RATES, *TROUBLES}:
        parser.error(f"--without {','.join(unknown)}: there is no such thing")
    machines = None if args.machines is None else frozenset(map(int, args.machines.split(",")))
    writers = tuple(filter(None, args.writers.split(",")))
    if strange := {*writers} - {*ROLES}:
        parser.error(f"--writers {','.join(strange)}: there are {', '.join(ROLES)}")
    first = Scenario(args.seed, args.steps, without, machines, writers)

    began, seed, steps, runs = time.monotonic(), args.seed, 0, 0
    acks = reads = 0
    found: Counter[str] = Counter()
    examples: dict[str, Result] = {}
    seeds: dict[str, list[int]] = {}
    counts: Counter[str] = Counter()
    while runs == 0 or (args.total is not None and steps < args.total):
        faulthandler.dump_traceback_later(_HANG_S, exit=True)
        result = simulate(replace(first, seed=seed), keep=10**6 if args.trace else 2_000)
        faulthandler.cancel_dump_traceback_later()
        runs, steps, seed = runs + 1, steps + result.steps, seed + 1
        acks, reads = acks + result.acks, reads + result.reads
        counts += result.counts
        if args.digest:
            print(f"seed {seed - 1}: {result.steps} steps, trace {result.digest:016x}")
        if args.trace:
            print("\n".join(result.trace))
        if result.violation is not None:
            found[result.violation.kind] += 1
            examples.setdefault(result.violation.kind, result)
            seeds.setdefault(result.violation.kind, []).append(result.scenario.seed)
            if not args.survey:
                return _report(result, shrunk=args.no_shrink)
    took = time.monotonic() - began
    print(
        f"{runs} runs from seed {first.seed}, {steps} requests, {acks} acks, {counts['atomics']} atomic appends, "
        f"{reads} reads, "
        f"{counts['killed']} kills, {counts['suspended']} suspensions, {counts['clock']} clock jumps in {took:.0f} s"
    )
    for kind, number in found.most_common():
        example = examples[kind]
        print(
            f"{number:5} x {kind}: seeds {seeds[kind]}\n        {example.scenario.command}\n        {example.violation}"
        )
    return 1 if found else 0


def _report(result: Result, *, shrunk: bool) -> int:
    assert result.violation is not None
    print(f"VIOLATION in seed {result.scenario.seed}: {result.violation}")
    print(f"replay: {result.scenario.command}")
    smallest = result if shrunk else shrink(result.scenario)
    print(f"smallest: {smallest.scenario.command}\n{smallest.violation}")
    print("\n".join(smallest.trace[-_TRACE_LINES:]))
    return 1


if __name__ == "__main__":
    sys.exit(main())
