"""`python -m tests.model`: what the search finds, as a table. With the name of a variant: the way to its violation."""

from __future__ import annotations

import sys

from .runs import CONTRASTS, RULES
from .search import search


def main(wanted: list[str]) -> None:
    if wanted:
        for contrast in CONTRASTS:
            if contrast.variant.__name__ in wanted:
                found = search(
                    contrast.run.world(contrast.variant()),
                    contrast.run.prelude,
                    progress="stuck" in contrast.kinds,
                )
                print(f"{contrast.variant.__doc__}\n{found}\n")
        return
    print("| who meets | faults | states | ends |\n|---|---|---|---|")
    states = 0
    for holds in RULES:
        found = search(holds.run.world(), holds.run.prelude, progress=holds.progress)
        states += found.states
        verdict = f"**{found.kind}**" if found.kind else f"{len(found.over):,}"
        print(
            f"| {holds.name}: `{holds.run.words}` | {holds.run.faults} | {found.states:,} | {verdict} |",
            flush=True,
        )
    print(f"| all | | {states:,} | |\n")
    print("| broken rule | found | steps | states |\n|---|---|---|---|")
    for contrast in CONTRASTS:
        found = search(
            contrast.run.world(contrast.variant()), contrast.run.prelude, progress="stuck" in contrast.kinds
        )
        said = " ".join((contrast.variant.__doc__ or "").split())
        print(
            f"| `{contrast.variant.__name__}`: {said} | {found.kind or '**nothing**'} | {found.steps} | {found.states:,} |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
