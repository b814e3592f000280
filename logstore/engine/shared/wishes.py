"""Wishes in the store: how a shared writer that loses every race asks the others for its turn (see `turns`).

A wish is an object beside the chain whose name says everything, so that one small listing tells all of them. It is a hint:
the conditional create alone decides who commits, and whatever goes wrong with a wish is logged and changes no append.
"""

from __future__ import annotations

import logging

from logstore.engine.chain.chain import Chain
from logstore.layout.paths import WishName

logger = logging.getLogger(__name__)

_CONTENT = b"\x01"  # the version of what follows, which is nothing yet


class Wishes:
    """One writer's, and what it hears of the others'. One thread at a time."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._ours: WishName | None = None

    def leave(self, wish: WishName) -> None:
        """From now on this is our wish, instead of one before."""
        self.take_back()
        self._ours = wish  # before the request: it may be there although the answer says no
        try:
            self._chain.store.put(self._chain.paths.wish(wish), _CONTENT)
        except Exception as error:
            logger.warning("%s: could not ask the other writers for a turn: %s", self._chain.paths, error)

    def take_back(self) -> None:
        """We need no turn any more. No request if we have not asked for one."""
        wish, self._ours = self._ours, None
        if wish is None:
            return
        try:
            self._chain.store.delete(self._chain.paths.wish(wish))
        except Exception as error:  # the others see that it was answered, and `logstore gc` takes it away
            logger.warning("%s: a wish that was answered stays for now: %s", self._chain.paths, error)

    def standing(self) -> list[WishName]:
        """Those of all writers; none if that cannot be found out."""
        paths = self._chain.paths
        try:
            names = [paths.wish_name(info.key) for info in self._chain.store.list(paths.wishes_prefix)]
        except Exception as error:
            logger.warning("%s: could not look for writers that want a turn: %s", paths, error)
            return []
        return [name for name in names if name is not None]
