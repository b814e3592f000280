from .runs import *
from .search import *
import sys
for c in CONTRASTS:
    if len(sys.argv)>1 and sys.argv[1] not in c.variant.__name__: continue
    o=search(c.run.world(c.variant()),300000)
    print(("ok   " if o.kind in c.kinds else "BAD  "), c.variant.__name__, c.kinds, c.run.words, c.run.faults, (str(o) if len(sys.argv)>1 or o.kind not in c.kinds else f"{o.kind} {o.steps} {o.states} {o.seconds:.1f}"))
