"""The hooks that a service with a store has: what a worker holds is stored before it ends."""

from __future__ import annotations

from typing import Any

from tests.support.deploying.wsgi_app import store


def worker_exit(server: Any, worker: Any) -> None:
    if store.cache_info().currsize:
        store().close()
