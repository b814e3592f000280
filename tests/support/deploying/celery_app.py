"""Tasks that append, in a prefork pool: each of its processes opens the store for itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown

import logstore
from tests.support.engine.harness import until

HOME = Path(os.environ["APP_HOME"])
SETTINGS = json.loads(os.environ.get("APP_SETTINGS", "{}"))
for _folder in ("queue", "control", "begun"):
    (HOME / _folder).mkdir(parents=True, exist_ok=True)

app = Celery("tasks", broker="filesystem://")
app.conf.broker_transport_options = {
    "data_folder_in": str(HOME / "queue"),
    "data_folder_out": str(HOME / "queue"),
    "control_folder": str(HOME / "control"),
    "polling_interval": 0.02,
}
app.conf.worker_prefetch_multiplier = 1

_store: logstore.Store | None = None


@worker_process_init.connect  # type: ignore[untyped-decorator]
def open_store(**_: Any) -> None:
    global _store
    _store = logstore.open(os.environ["LOGSTORE_URL"], **SETTINGS)


@worker_process_shutdown.connect  # type: ignore[untyped-decorator]
def close_store(**_: Any) -> None:
    assert _store is not None
    _store.close()


@app.task  # type: ignore[untyped-decorator]
def append(value: str) -> None:
    """Fails, as Celery sees it, if the append does. Waits for a second process: a quick first one would do all tasks."""
    (HOME / "begun" / str(os.getpid())).touch()
    until(lambda: len(list((HOME / "begun").iterdir())) > 1)
    assert _store is not None
    _store.create_topic("events", exist_ok=True).append(f"{value} {os.getpid()}".encode())
