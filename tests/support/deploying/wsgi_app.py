"""A service for gunicorn: the store is opened in the worker, after the fork, at the first request."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import logstore

SETTINGS = json.loads(os.environ.get("APP_SETTINGS", "{}"))


@cache
def store() -> logstore.Store:
    return logstore.open(os.environ["LOGSTORE_URL"], **SETTINGS)


@cache
def events() -> logstore.Topic:
    return store().create_topic("events", exist_ok=True)


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    answer: dict[str, Any]
    if environ["PATH_INFO"] == "/ready":
        status, answer = "200 OK", {"pid": os.getpid()}
    else:
        value = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        try:
            receipt = events().append(value)
            status, answer = "200 OK", {"offset": receipt.offset, "pid": os.getpid()}
        except logstore.LogStoreError as error:
            answer = {"error": type(error).__name__, "text": str(error), "pid": os.getpid()}
            status = "503 Service Unavailable" if error.retriable else "500 Internal Server Error"
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]
