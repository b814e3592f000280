"""`python -m tests.model`: what the search finds, as a table. With the name of a variant: the way to its violation."""

from __future__ import annotations

import sys
from typing import Any

from tests.model import (
    asks_runs,
    combining_runs,
    groups_runs,
    guesses_runs,
    lanes_runs,
    lives_runs,
    lost_transfers_runs,
    places_runs,
    recoveries_runs,
    transactions_runs,
    transfers_runs,
)
from tests.model.asks import Asks
from tests.model.guesses import Guesses
from tests.model.harness import Contrast
from tests.model.lanes import Lanes
from tests.model.lives import Lives
from tests.model.lost_transfers import LostTransfers
from tests.model.places import Places
from tests.model.recoveries import Recoveries
from tests.model.runs import CONTRASTS, RULES
from tests.model.search import Outcome, Violation, World, search
from tests.model.transfers import Transfers

INTRODUCTION = """\
# What the model finds

Printed by `python -m tests.model`; the way to a violation, request by request, by `python -m tests.model NAME`. Each step is
one request of one actor, or the arrival of a late one. Every interleaving is tried; there is no clock and no grace period;
an actor may sleep for any time, or for ever, between any two requests. A fault is one of: an answer is lost (the request
arrives at any time, or never); a copy of a request arrives later; "precondition failed" although it was done.

## The rules hold

All states of each run, from the first request on (with †: after an exclusive writer has opened). "Ends" are those in which
every actor has come to its end. Words: `x:2` exclusive writer with two records, `a~2` shared, `p=2` replicated, `s^2` a
standby that is promoted, `w!2` exclusive with a WAL that dies and opens again, `c@2` exclusive that writes a checkpoint.
"""
BROKEN = """
## Each rule, broken

What is found first: *lost* (an acked or committed record is missing or moved), *twice*, *dangling* (the manifest names
nothing), *misread* (a reader is given something else), *short* (a reader believes in an end before what was acked), *denied*
(told "never stored", and it is), *undead* (acked after the topic was deleted), *gap* (of a replicated source), *damage*
(reported, and there is none), *stuck* (an actor can never come to its end). Steps are the fewest there are, except with †.
"""
LANES = """
## Lanes: one chain for all partitions of a process

The rules are in `lanes.py`, with the claims of a topic in one chain. Words: `a:o2` a process that owns p and q and has two
uploads under way, `b:p1` takes p over, `b:b1` both, `c/A:n1` is the next life of lane A, `x` closes, `g` gives p up with its
own entry, `w~1` a shared writer of p in its own chain, `split/A*1` a splitter. Each flush writes two records of p, one of q.
More kinds: *reused* (an offset that was shown is given to another record), *half* (of an atomic append), *endless*
(an owner stands in its own way for ever).
"""
PLACES = """
## Lanes as they are built: a part has a place in its partition's chain

The rules are in `places.py`, and `logstore/engine/lanes` and `logstore/engine/write` follow them. Words as above.
"""
TRANSFERS = """
## One entry claims many partitions

The rules are in `transfers.py`: what is said above, and an entry that ends claims and says in which lane they go on. `d`
takes over with a seal and a fence in the partition's chain, the others by such an entry. In the runs of a new topic its
partitions begin in a lane that nobody owns.
"""
LOST_TRANSFERS = """
## A transfer that cannot be read any more

The rules are in `lost_transfers.py`: what is said above, and `rot*1`, which damages the first transfer that stands, at any
moment.
"""
GUESSES = """
## Claims that are made without a look

The rules are in `guesses.py`, and `LaneReader.transfer` and `checkpoint_ended` follow them: what is said above, and who
remembers a lane, as it stood at any moment before, claims behind the last entry that it remembers. Words: `c` has created
the topic, `m` remembers all lanes, `t` where the partitions end, `s` says in a checkpoint what the lane holds that it
claimed from; `d` seals by what it remembers; `erase/G*1` deletes a transfer that the checkpoint knows; `follower*2`
remembers where it stood. The run of an adoption begins when its lane's one partition is elsewhere, and the adopter
remembers the lane from before.
"""
ASKS = """
## A taker that is outrun asks the owner

The rules are in `asks.py`: what is said above, and a void entry ahead in the lane that asks its owner to end claims.
"""
LIVES = """
## Threads of one process, and lives of one lane

The rules are in `book.py` and `lives.py`, and `logstore/engine/write/lanes` follows them. Words: `a1:q1` thread 1 of process
a, whose lane is A, opens q and appends a record; `a2:Q1` appends with the writer of q that there is from the start; `k`
writes a checkpoint from memory; `ask/A:pq` asks for p and q, `ask/A:q2` two places ahead; `split/A` splits the lane, and
deletes nothing. Others are processes as above. Runs of three uploads begin when these are under way, and a transfer of q
stands where the first of them should be; those of a late answer when the claim stands, and its thread was not told, and
the one with a split when c has adopted the lane, too. *Foreign*: a process finds an entry in its lane that counts and is
not its own.
"""
RECOVERIES = """
## A process that comes back with a WAL

The rules are in `recoveries.py`, and `logstore/engine/write/takeover.py` follows them. Words: `w:ollr1` has p, acks two
records as local, dies, and its next life opens p and flushes; `u` also sends what waits, and dies before it is told; `s`
is shown, and the WAL loses it; `f` is a life that dies when its first fence is sent. Three offsets are reserved. Others are
processes as above, `x~1` a shared writer. *Forgotten*: p is open again, and what the WAL kept is not at its offset.
"""
COMBINING = """
## Shared writers: the winner commits for all

The rules are in `combining.py`, and in `logstore/engine/shared`. Words: `a:2` two appends, alone first; `b+1` put
aside at once; `c-1` put aside, and denied when its window is over. The window is two or three places.
"""
GROUPS = """
## Groups: who may save which position

The rules are in `groups.py`, and `logstore/groups` follows them. Words: `a0:2` member a in slot 0, which saves twice and
leaves; `a0!2` dies instead; `r0` somebody who believes at any time that whoever has slot 0 is dead. More kinds: *ignored*
(told that it is saved, and it never counted), *wrong start* (a member begins where nobody has saved).
"""
TRANSACTIONS = """
## Transactions: how one is decided, and told to its partitions

The rules are in `transactions.py` and `together.py`, and `broker_shim/transactions` follows them. Words: `a:PQc,Pa` a
producer that commits a transaction in P and Q and aborts one in P, `?` leaves it open; `A:PQc` the same in the short cut,
where the coordinator and all partitions are in one lane; `a~Pc,Pc` in two steps, one
begun over the markers of the other, `!` and dies before it tells them;
`f*2` and `g*1` carry out decisions; `clock` a time-out; `taker` another coordinator; `late:P` a batch that was under way for
long; `again:a` and `twice:a` requests to end the first transaction; `r:P` a reader of what is committed. More kinds: *mixed*
(records are ended by another decision than theirs), *decided twice*, *hangs* (open in a partition, and nobody will end it),
*dirty* (a reader is shown what is not committed).
"""


def _table(runs: Any, introduction: str, *rules: Any) -> None:
    """The rules that hold, each rule broken, and what was found not to be needed."""
    not_needed = getattr(runs, "NOT_NEEDED", [])
    print(introduction)
    print("| who meets | faults | states | ends |\n|---|---|---|---|")
    states = 0
    for holds in runs.RULES:
        world, run = holds.run.world(*rules), holds.run
        found = search(world, getattr(run, "prelude", ""), progress=holds.progress)
        states += found.states
        kind = _kind(runs, world, found)
        verdict = f"**{kind}**" if kind else f"{len(found.over):,}"
        print(f"| {holds.name}: `{run.words}` | {run.faults} | {found.states:,} | {verdict} |", flush=True)
    print(f"| all | | {states:,} | |\n")
    print("| broken rule | who meets | found | steps | states |\n|---|---|---|---|---|")
    for contrast in runs.CONTRASTS + not_needed:
        world, run = contrast.run.world(contrast.variant), contrast.run
        found = search(world, getattr(run, "prelude", ""))
        verdict = _kind(runs, world, found) or (
            "nothing: not needed" if contrast in not_needed else "**nothing**"
        )
        said = " ".join((contrast.variant.__doc__ or "").split())
        where = f"`{run.words}`{', one fault' if run.faults else ''}"
        steps = found.steps or ""
        print(
            f"| `{contrast.variant.__name__}`: {said} | {where} | {verdict} | {steps} | {found.states:,} |",
            flush=True,
        )


def _kind(runs: Any, world: World, found: Outcome) -> str | None:
    """What is wrong; some models judge also how it ends."""
    if hasattr(runs, "judged"):
        violation: Violation | None = runs.judged(world, found)
        return None if violation is None else violation[0]
    return found.kind


def _found(contrast: Contrast) -> Outcome:
    return search(
        contrast.run.world(contrast.variant), contrast.run.prelude, progress="stuck" in contrast.kinds
    )


def main(wanted: list[str]) -> None:
    if wanted:
        for contrast in CONTRASTS:
            if contrast.variant.__name__ in wanted:
                print(f"{contrast.variant.__doc__}\n{_found(contrast)}\n")
        others: list[Any] = [
            *lanes_runs.CONTRASTS,
            *places_runs.CONTRASTS,
            *transfers_runs.CONTRASTS,
            *lost_transfers_runs.CONTRASTS,
            *guesses_runs.CONTRASTS,
            *asks_runs.CONTRASTS,
            *lives_runs.CONTRASTS,
            *recoveries_runs.CONTRASTS,
            *combining_runs.CONTRASTS,
            *groups_runs.CONTRASTS,
            *transactions_runs.CONTRASTS,
        ]
        for other in others:
            if other.variant.__name__ in wanted:
                found = search(other.run.world(other.variant), getattr(other.run, "prelude", ""))
                print(f"{other.variant.__doc__}\n{found}\n")
        return
    print(INTRODUCTION)
    print("| who meets | faults | states | ends |\n|---|---|---|---|")
    states = 0
    for holds in RULES:
        found, run = search(holds.run.world(), holds.run.prelude, progress=holds.progress), holds.run
        states += found.states
        verdict = f"**{found.kind}**" if found.kind else f"{len(found.over):,}"
        dagger = " †" if run.prelude else ""
        print(
            f"| {holds.name}: `{run.words}`{dagger} | {run.faults} | {found.states:,} | {verdict} |",
            flush=True,
        )
    print(f"| all | | {states:,} | |")
    print(BROKEN)
    print("| broken rule | found | steps | states |\n|---|---|---|---|")
    for contrast in CONTRASTS:
        found = _found(contrast)
        said = " ".join((contrast.variant.__doc__ or "").split())
        steps = f"{found.steps}{' †' if contrast.run.prelude else ''}"
        verdict = found.kind or "**nothing**"
        print(
            f"| `{contrast.variant.__name__}`: {said} | {verdict} | {steps} | {found.states:,} |", flush=True
        )
    _table(lanes_runs, LANES, Lanes)
    _table(places_runs, PLACES, Places)
    _table(transfers_runs, TRANSFERS, Transfers)
    _table(lost_transfers_runs, LOST_TRANSFERS, LostTransfers)
    _table(guesses_runs, GUESSES, Guesses)
    _table(asks_runs, ASKS, Asks)
    _table(lives_runs, LIVES, Lives)
    _table(recoveries_runs, RECOVERIES, Recoveries)
    _table(combining_runs, COMBINING)
    _table(groups_runs, GROUPS)
    _table(transactions_runs, TRANSACTIONS)


if __name__ == "__main__":
    main(sys.argv[1:])
