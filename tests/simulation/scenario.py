"""One run: what a seed makes of the world, and the run itself.

A `Scenario` is the seed and what was switched off, so that a failing run can be made smaller and replayed. Every choice is
drawn from an rng of its own (`seed/what`), so switching one thing off leaves the others as they were.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import logstore
from logstore.engine.write.lanes import lane_checkpoints, lane_queue
from logstore.errors import Determinate, Indeterminate, UnknownTopic
from tests.simulation.actors import (
    STALLS_S,
    Crowding,
    Deleting,
    Following,
    Maintaining,
    Replicating,
    Role,
    Writing,
)
from tests.simulation.atomic import Atomic, Busy
from tests.simulation.oracle import Place, Violation
from tests.simulation.world import RATES, YEAR_S, Loud, Machine, Process, ProcessClock, World

TROUBLES = ("stalls", "jumps", "kills", "skew", "trims", "deletion", "retention", "lanes", "names")
"""What can be switched off beside the faults of the store."""

ROLES: dict[str, type[Role]] = {
    "exclusive": Atomic,
    "busy": Busy,
    "shared": Writing,
    "crowd": Crowding,
    "reader": Following,
    "replicated": Replicating,
    "maintainer": Maintaining,
    "deleter": Deleting,
}
GRACES = ((86_400.0, 86_400.0, 86_400.0, 3_600.0, 1.0, 0), (0, 0, 0, 0, 1.0, 86_400.0))
"""Of most processes the default; of who maintains by hand mostly none."""
_TURN_STEPS = 4_000
_TURN_S = 6 * 3_600.0


@dataclass(frozen=True)
class Scenario:
    seed: int
    steps: int = 2_000
    without: frozenset[str] = frozenset()
    machines: frozenset[int] | None = None
    writers: tuple[str, ...] = ()
    """These instead of those that the seed draws."""
    lies: float = 0.0
    """A contrast: a store that now and then ignores conditions. The judge must see what comes of it."""

    @property
    def command(self) -> str:
        parts = [f"python -m tests.simulation --seed {self.seed} --steps {self.steps}"]
        if self.without:
            parts.append(f"--without {','.join(sorted(self.without))}")
        if self.machines is not None:
            parts.append(f"--machines {','.join(map(str, sorted(self.machines)))}")
        if self.writers:
            parts.append(f"--writers {','.join(self.writers)}")
        return " ".join(parts)


@dataclass(frozen=True)
class Result:
    scenario: Scenario
    violation: Violation | None
    steps: int
    acks: int
    reads: int
    seconds: float
    digest: int
    counts: Counter[str]
    trace: list[str]


def simulate(scenario: Scenario, *, keep: int = 2_000) -> Result:
    return _Run(scenario, keep).run()


def roles_of(scenario: Scenario) -> list[str]:
    """The role of each machine."""
    return _Run(scenario, 0).kinds


class _Run:
    def __init__(self, scenario: Scenario, keep: int) -> None:
        self.scenario = scenario
        rng = self.rng("plan")
        self.kinds = self._kinds(rng)
        self.topics = self._topics(rng)
        rates = {name: rate for name, (_, rate) in RATES.items() if name not in scenario.without}
        free_low = {name for name, settings in self.topics.items() if len(settings) > 1}
        self.world = World(scenario.seed, scenario.steps, rates, free_low, keep)
        self.world.topic_settings = self.topics
        self.world.trims = self.has("trims")
        self.world.lies = scenario.lies
        self.nemesis = self.rng("nemesis")
        self.roles: dict[Process, Role] = {}

    def rng(self, what: str) -> random.Random:
        return random.Random(f"{self.scenario.seed}/{what}")

    def has(self, trouble: str) -> bool:
        return trouble not in self.scenario.without

    # The plan

    def _kinds(self, rng: random.Random) -> list[str]:
        """The role of each machine. Partition 0 is for exclusive and shared writers, partition 1 for replicated ones, and
        partition 2 for exclusive ones, which append to 0 and 2 at once."""
        writers = rng.choice(
            [
                ["shared", "shared"],
                ["shared", "shared", "shared"],
                ["exclusive", "shared"],
                ["exclusive", "exclusive"],
                ["exclusive"],
                ["replicated", "replicated"],
                ["replicated", "replicated", "shared"],
                ["exclusive", "shared", "shared"],
                ["crowd"] * 6,
                ["crowd", "crowd", "crowd", "crowd", "shared", "exclusive"],
            ]
        )
        if self.rng("busy").random() < 0.1:
            writers = ["busy"] * 3
        kinds = [*(self.scenario.writers or writers), "reader", "maintainer"]
        if rng.random() < 0.4:
            kinds.append("maintainer")
        if rng.random() < 0.3:
            kinds.append("reader")
        if rng.random() < 0.25 and self.has("deletion"):
            kinds.append("deleter")
        return kinds

    def _topics(self, rng: random.Random) -> dict[str, dict[str, Any]]:
        settings: dict[str, Any] = {"segment_bytes": rng.choice([600, 4_000, 1 << 20])}
        luck = rng.random()
        if luck < 0.1 and self.has("retention"):
            settings["retention_bytes"] = 3_000
        elif luck < 0.2 and self.has("retention"):
            settings["retention_seconds"] = 50_000.0
        return {"t": settings}

    def _settings(self, kind: str, rng: random.Random) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "delete_grace": rng.choice(GRACES[kind == "maintainer"]),
            "flush_interval": rng.choice([0.01, 0.2, 1.0]),
            "append_timeout": rng.choice([2.0, 30.0, 300.0]),
            "cache_bytes": rng.choice([0, 64 << 20]),
            "follow_interval": rng.choice([0.2, 2.0]),
        }
        if kind in ("exclusive", "busy", "shared", "crowd"):
            settings["writer"] = {"crowd": "shared", "busy": "exclusive"}.get(kind, kind)
        if kind in ("exclusive", "busy"):
            settings["take_over"] = True  # or it would join shared writers, who know durable acks only
            settings["lanes"] = rng.choice([0, 1, 1, 2]) if self.has("lanes") else 0
            if kind == "busy" and self.has("lanes"):
                settings["lanes"] = 1  # in which all that it has is under way
            elif settings["lanes"] and self.has("names"):
                # The next life of a machine has the same name; and somebody may have given two the same.
                settings["lane"] = rng.choice([None, "one", "one", "two"])
        elif kind == "reader" or (kind == "maintainer" and rng.random() < 0.8):
            settings["writer"] = "read_only"
        return settings

    # The run

    def run(self) -> Result:
        world = self.world
        logging.getLogger("concurrent.futures").disabled = True  # of pools whose process was killed
        root, quiet = logging.getLogger("logstore"), logging.getLogger("logstore").propagate
        loud, level = Loud(world), root.level
        root.addHandler(loud)
        root.propagate = False
        root.setLevel(logging.ERROR)
        sizes = lane_checkpoints.CHECKPOINT_EVERY, lane_checkpoints.SPLIT_EVERY, lane_queue.ENTRY_BYTES
        # A run has no time for more, and appends little: several uploads in flight, and many splits.
        lane_checkpoints.CHECKPOINT_EVERY, lane_checkpoints.SPLIT_EVERY, lane_queue.ENTRY_BYTES = 4, 6, 64
        try:
            world.kernel.run(self._drive)
        finally:
            lane_checkpoints.CHECKPOINT_EVERY, lane_checkpoints.SPLIT_EVERY, lane_queue.ENTRY_BYTES = sizes
            root.removeHandler(loud)
            root.propagate = quiet
            root.setLevel(level)
        return Result(
            self.scenario,
            world.violation,
            world.steps,
            world.oracle.acks,
            world.oracle.reads,
            world.kernel.now,
            world.digest,
            world.counts,
            list(world.trace),
        )

    def _drive(self) -> None:
        world = self.world
        self._prepare()
        world.start_faults()
        for number, kind in enumerate(self.kinds):
            if self.scenario.machines is None or number in self.scenario.machines:
                self._start(number, kind, self._machine(number))
        self._next_trouble()
        world.wait_for_the_end()
        if world.violation is None:
            self._finish()

    def _prepare(self) -> None:
        """The topic is there before anything goes wrong; in some runs not even the store's marker was made in peace."""
        world = self.world
        if self.rng("peace").random() < 0.2:
            world.start_faults()
        for _ in range(20):
            try:
                with self._onlooker(writer="exclusive") as store:
                    for name, settings in self.topics.items():
                        store.create_topic(name, 3, exist_ok=True, **settings)
                break
            except (Indeterminate, Determinate):
                continue
        world.objects.heal()

    def _onlooker(self, **settings: Any) -> logstore.Store:
        """A store that the driver opens: at once, and without faults unless they are switched on."""
        clock = ProcessClock(self.world.kernel, 1.0, 0.0)
        return logstore.open(
            self.world.objects, clock=clock, rng=self.rng(f"onlooker/{self.world.steps}"), **settings
        )

    def _machine(self, number: int) -> Machine:
        rng = self.rng(f"machine/{number}")
        if not self.has("skew"):
            return Machine(number, 1.0, 0.0)
        ahead = rng.choice([0.0, 0.0, 3.0, -3.0, 3_600.0, -7_200.0, 2 * 86_400.0, -2 * 86_400.0, 3 * YEAR_S])
        return Machine(number, rng.uniform(0.999, 1.001), ahead)

    def _start(self, number: int, kind: str, machine: Machine) -> None:
        rng = self.rng(f"start/{number}/{machine.lives}")
        if kind in ("exclusive", "shared") and machine.lives and rng.random() < 0.2:
            kind = rng.choice(["exclusive", "shared"])
        process = Process(self.world, machine)
        mine = {"replicated": [1], "exclusive": [0, 2], "busy": [0, 2], "shared": [0], "crowd": [0]}.get(
            kind, [0, 1, 2]
        )
        role = ROLES[kind](process, self._settings(kind, rng), dict.fromkeys(self.topics, mine))
        self.roles[process] = role
        process.note(f"starts {kind} {role.settings}")
        process.start(lambda _: role.run())

    # Trouble

    def _next_trouble(self) -> None:
        self.world.after(self.nemesis.randint(20, 120), self._trouble)

    def _trouble(self) -> None:
        world, rng = self.world, self.nemesis
        self._next_trouble()
        alive = [process for process in world.processes if not process.life.dead]
        if not alive:
            return
        process, luck = rng.choice(alive), rng.random()
        if luck < 0.5:
            steps, seconds = rng.choice([5, 40, 150, 400, 600]), rng.choice(STALLS_S)
            asleep = rng.random() < 0.5
            if self.has("stalls"):
                process.note(f"suspended for {steps} steps")
                process.suspend(steps, seconds, asleep=asleep)
        elif luck < 0.7:
            seconds = rng.choice([-1, 1]) * rng.choice([5.0, 7_200.0, 200_000.0, YEAR_S, 5 * YEAR_S])
            if self.has("jumps"):
                process.note(f"clock {seconds:+.0f} s")
                process.clock.jump(seconds)
        else:
            kill_in, after, back_in = rng.randint(1, 30), rng.random() < 0.5, rng.randint(5, 200)
            if self.has("kills") and process.kill_in is None:
                process.kill_in, process.kill_after = kill_in, after
                world.after(kill_in + back_in, lambda: self._restart(process))

    def _restart(self, process: Process) -> None:
        if not process.life.dead:
            self.world.after(50, lambda: self._restart(process))  # it sleeps, or has sent nothing since
            return
        number = process.machine.number
        self._start(number, self.kinds[number], process.machine)

    # The end

    def _finish(self) -> None:
        world = self.world
        world.begin_finale()
        roles = [role for process, role in self.roles.items() if not process.life.dead]
        for role in roles:
            self._turn(role, lambda: None)
        with self._onlooker(writer="exclusive") as store:
            for name, settings in self.topics.items():
                store.create_topic(name, 3, exist_ok=True, **settings)
        for _ in range(2):
            for role in roles:
                if isinstance(role, Writing | Replicating):
                    self._turn(role, role.last_append)
            for role in roles:
                if isinstance(role, Maintaining):
                    self._turn(role, role.last_collection)
            for call in world.objects.deliver():
                world.note("late", f"{call.operation} {call.key} {call.outcome}")
        if world.violation is None:
            self._audit(roles)

    def _turn(self, role: Role, call: Callable[[], object]) -> None:
        """Let it do something in the finale, and wait for it."""
        world, kernel, process = self.world, self.world.kernel, role.process
        until, steps = kernel.now + _TURN_S, world.steps + _TURN_STEPS
        asked = False
        while world.violation is None and not process.life.dead:
            if process.waits is not None:
                if asked and process.turn is None:
                    return
                if not asked:
                    asked = True
                    process.turn = call
                    kernel.unpark(process.waits)
            if kernel.now > until or world.steps > steps:
                world.fail("a process does not come to an end", f"{process.name} ({type(role).__name__})")
            kernel.sleep(0.5)

    def _audit(self, roles: list[Role]) -> None:
        world, oracle = self.world, self.world.oracle
        with self._onlooker(writer="read_only") as store:
            alive = {}
            found: dict[Place, tuple[int, set[str]]] = {}
            for name in sorted(self.topics):
                try:
                    topic = store.topic(name)
                except UnknownTopic:
                    continue
                for number in range(topic.partitions):
                    log = topic.partition(number)
                    alive[name, log._internal.paths.incarnation, number] = log
            for place, partition in sorted(oracle.partitions.items()):
                log_ = alive.get(place)
                if log_ is None:
                    if place[1] not in oracle.deleting and partition.durable:
                        world.fail("a topic is gone", f"{place}: nobody deleted it")
                    continue
                try:
                    records = [(r.offset or 0, (r.value or b"").decode()) for r in log_.records()]
                except logstore.LogStoreError as error:
                    world.fail(f"{type(error).__name__} for a fresh reader", f"{place}: {error}")
                    return
                low, high = log_.low_watermark, log_.durable_high_watermark
                oracle.audit(place, records, low, high)
                found[place] = low, {value for _, value in records}
                world.note("audit", f"{place[1][:4]}/{place[2]} {low}..{high} {len(records)}")
                for role in roles:
                    if isinstance(role, Following) and world.violation is None:
                        self._turn(role, lambda: role.read_to_the_end(place, high))  # noqa: B023
            world.counts["atomics"] += (stored := oracle.audit_atomics(found))
            world.note("audit", f"{stored} of {len(oracle.atomics)} atomic appends")


def shrink(failing: Scenario, *, tries: int = 60) -> Result:
    """A smaller scenario that ends with a violation of the same kind: fewer machines, faults, troubles and steps."""
    best = simulate(failing)
    assert best.violation is not None
    kind = best.violation.kind

    def still(candidate: Scenario) -> bool:
        nonlocal best, tries
        if tries <= 0:
            return False
        tries -= 1
        result = simulate(candidate)
        if result.violation is None or result.violation.kind != kind:
            return False
        best = result
        return True

    for _ in range(2):
        for name in (*RATES, *TROUBLES):
            if name not in best.scenario.without:
                still(replace(best.scenario, without=best.scenario.without | {name}))
        if best.scenario.machines is None:
            everyone = frozenset(range(len(roles_of(best.scenario))))
            best = replace(best, scenario=replace(best.scenario, machines=everyone))
        for number in sorted(best.scenario.machines or ()):
            still(replace(best.scenario, machines=(best.scenario.machines or frozenset()) - {number}))
        while best.scenario.steps > 60 and still(replace(best.scenario, steps=best.scenario.steps * 2 // 3)):
            pass
    return best
