"""A service for uvicorn: as in docs/deploying.md, with its settings from the environment."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import logstore
import logstore.aio

SETTINGS = json.loads(os.environ.get("APP_SETTINGS", "{}"))


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with logstore.aio.open(os.environ["LOGSTORE_URL"], **SETTINGS) as store:
        app.state.store = store
        app.state.events = await store.create_topic("events", exist_ok=True)
        yield


async def append(request: Request) -> JSONResponse:
    try:
        receipt = await request.app.state.events.append(await request.body())
    except logstore.LogStoreError as error:
        why = {"error": type(error).__name__, "text": str(error), "pid": os.getpid()}
        return JSONResponse(why, 503 if error.retriable else 500)
    return JSONResponse({"offset": receipt.offset, "durability": receipt.durability, "pid": os.getpid()})


async def ready(request: Request) -> JSONResponse:
    health = request.app.state.store.health()
    stopped = any(partition["state"] == "stopped" for partition in health["partitions"])
    is_ready = health["store_reachable"] and not stopped
    return JSONResponse({"ready": is_ready, "pid": os.getpid()}, 200 if is_ready else 503)


app = Starlette(
    routes=[Route("/append", append, methods=["POST"]), Route("/ready", ready)], lifespan=lifespan
)
