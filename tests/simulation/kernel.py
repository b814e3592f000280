"""Threads in simulated time: the engine's own threads, of which one runs at a time, chosen by a seed.

`Kernel.run` starts a first task; whatever that starts through `threading` becomes a task too. A task runs until it waits:
for a lock that another holds, a condition, a thread's end, or a time. Then another that can go on is chosen; if none can,
the clock moves to the next moment at which something is due. So waiting takes no time, nothing depends on how the machine
schedules, and the same seed gives the same run.

Each task is a thread of the operating system that waits for its turn. While a kernel runs, `threading.Lock`, `RLock`,
`Condition` and `Thread` (and with them events, semaphores, futures and pools), `os.urandom` and `time.sleep` mean simulated
ones to its tasks, and stay what they are to everybody else.
"""

from __future__ import annotations

import _thread
import concurrent.futures.thread as pools
import gc
import heapq
import os
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from logstore.objects.fan_out import fan_out, timed
from logstore.objects.wrappers import retrying

_INSTANT_S = 1e-6
"""The least that a wait takes: less would be lost in rounding, and who looks at its clock afterwards would wait again."""


class Killed(BaseException):
    """The task's process is dead: it ends wherever it is, and nothing that it does on its way out has an effect."""


class Life:
    """What a set of tasks has in common: they stop and die together. `frozen` tasks are not run until they are thawed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.frozen = False
        self.waiting: list[Task] = []


class Task:
    def __init__(self, number: int, life: Life, call: Callable[[], object], name: str) -> None:
        self.number = number
        self.life = life
        self.call = call
        self.name = name
        self.gate = _thread.allocate_lock()
        self.gate.acquire()
        self.parked = False
        self.turn = 0  # which wait this is: a timer of an earlier one means nothing
        self.notified = False
        self.ended = False
        self.joiners: list[Task] = []
        self.facade: Any = None


class Kernel:
    """`now`: simulated seconds since the start. `on_fault`: called with what a task raised that nobody caught."""

    def __init__(self, seed: object, on_fault: Callable[[Task, BaseException], None]) -> None:
        self.now = 0.0
        self.rng = random.Random(f"kernel/{seed}")
        self.entropy = random.Random(f"entropy/{seed}")
        self.on_fault = on_fault
        self.over = False
        self.threads = 0
        self.current: Task
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._order = 0
        self._tasks: list[Task] = []
        self._numbers = 0
        self._idents: dict[int, Task] = {}
        self._done = _thread.allocate_lock()
        self._done.acquire()

    # Running

    def run(self, call: Callable[[], object]) -> None:
        """Run `call` as the first task, to its end; everything else ends with it."""
        with _simulated(self):
            gc.disable()  # a cycle's end must not fall into whichever task is running
            try:
                self.current = self.start(call, Life("driver"), "driver")
                self._ready.clear()
                self.current.gate.release()
                self._done.acquire()
            finally:
                self.over = True
                gc.enable()
        self._tasks.clear()
        self._timers.clear()
        gc.collect()

    def start(self, call: Callable[[], object], life: Life, name: str) -> Task:
        self._numbers += 1
        task = Task(self._numbers, life, call, name)
        self._tasks.append(task)
        _thread.start_new_thread(self._thread, (task,))
        self._wake(task)
        return task

    def _thread(self, task: Task) -> None:
        task.gate.acquire()
        self._idents[_thread.get_ident()] = task
        try:
            if not task.life.dead:
                task.call()
        except Killed:
            pass
        except BaseException as error:
            if not task.life.dead:
                self.on_fault(task, error)
        del self._idents[_thread.get_ident()]
        task.ended = True
        task.call = _nothing
        for joiner in task.joiners:
            self.unpark(joiner)
        self._tasks.remove(task)
        if task.life.name == "driver":
            for other in self._tasks:
                self.kill(other.life)
        if not self._tasks:
            self._done.release()
            return
        following = self._pick()
        self.current = following
        following.gate.release()

    def task_here(self) -> Task | None:
        """The task that this thread of the operating system is; None if it is none."""
        return self._idents.get(_thread.get_ident())

    # Waiting

    def park(self, timeout: float | None = None) -> bool:
        """The current task waits until it is unparked, or `timeout` seconds. Returns whether it was unparked."""
        task = self.current
        if task.life.dead or self.over:
            raise Killed
        task.parked = True
        task.notified = False
        task.turn += 1
        if timeout is not None:
            turn = task.turn
            self.at(self.now + max(_INSTANT_S, timeout), lambda: self._time_out(task, turn))
        following = self._pick()
        if following is not task:
            self.current = following
            following.gate.release()
            task.gate.acquire()
        if task.life.dead:
            raise Killed
        return task.notified

    def _time_out(self, task: Task, turn: int) -> None:
        if task.parked and task.turn == turn:
            self._wake(task)

    def unpark(self, task: Task) -> None:
        if task.parked:
            task.notified = True
            self._wake(task)

    def sleep(self, seconds: float) -> None:
        self.park(seconds)

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Call it, in nobody's name, when the clock gets there. It must not wait."""
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, call))

    def _wake(self, task: Task) -> None:
        task.parked = False
        if task.life.frozen and not task.life.dead:
            task.life.waiting.append(task)
        else:
            self._ready.append(task)

    def _pick(self) -> Task:
        ready, timers = self._ready, self._timers
        while not ready:
            if not timers:
                stuck = ", ".join(f"{task.life.name}/{task.name}" for task in self._tasks)
                raise RuntimeError(f"every task waits for ever: {stuck}")
            when, _, call = heapq.heappop(timers)
            self.now = max(self.now, when)
            call()
        return ready.pop(self.rng.randrange(len(ready)) if len(ready) > 1 else 0)

    # Lives

    def freeze(self, life: Life) -> None:
        """None of its tasks runs until `thaw`."""
        life.frozen = True
        for task in [task for task in self._ready if task.life is life]:
            self._ready.remove(task)
            life.waiting.append(task)

    def thaw(self, life: Life) -> None:
        life.frozen = False
        self._ready += life.waiting
        life.waiting = []

    def kill(self, life: Life) -> None:
        """Its tasks end where they stand. The one that calls this goes on until it waits."""
        if life.dead:
            return
        life.dead = True
        self.thaw(life)
        for task in self._tasks:
            if task.life is life and task.parked:
                self._wake(task)


def _nothing() -> None:
    return None


_kernel: Kernel | None = None


def running() -> Kernel:
    assert _kernel is not None, "no simulation is running"
    return _kernel


# What `threading` gives to a task


def _forget(waiting: deque[Task] | list[Task], task: Task) -> None:
    if task in waiting:
        waiting.remove(task)


class _Lock:
    def __init__(self) -> None:
        self._kernel = running()
        self._held = False
        self._queue: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        kernel = self._kernel
        if kernel.over or not self._held:
            self._held = True
            return True
        if not blocking or timeout == 0:
            return False
        me = kernel.current
        self._queue.append(me)
        if kernel.park(None if timeout < 0 else timeout):
            return True  # handed over by `release`
        _forget(self._queue, me)
        return False

    def release(self) -> None:
        while self._queue and not self._kernel.over:
            following = self._queue.popleft()
            if following.parked:  # else its time is up, and it will say so
                self._kernel.unpark(following)
                return
        self._held = False

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


class _RLock:
    def __init__(self) -> None:
        self._inner = _Lock()
        self._owner: Task | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        kernel = self._inner._kernel
        if kernel.over:
            return True
        if self._owner is kernel.current:
            self._depth += 1
            return True
        if not self._inner.acquire(blocking, timeout):
            return False
        self._owner, self._depth = kernel.current, 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth <= 0:
            self._owner, self._depth = None, 0
            self._inner.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


class _Condition:
    """On a plain lock; with a re-entrant one it may be waited on at depth one only, which is how it is used."""

    def __init__(self, lock: Any = None) -> None:
        self._kernel = running()
        self._lock = _RLock() if lock is None else lock
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._waiters: deque[Task] = deque()

    def __enter__(self) -> bool:
        return bool(self._lock.acquire())

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None and timeout <= 0:
            return False
        kernel = self._kernel
        me = kernel.current
        self._waiters.append(me)
        self._lock.release()
        if not (notified := kernel.park(timeout)):
            _forget(self._waiters, me)
        self._lock.acquire()
        return notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else self._kernel.now + timeout
        while not (result := predicate()):
            left = None if end is None else end - self._kernel.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        if self._kernel.over:
            return
        while n > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if waiter.parked:
                self._kernel.unpark(waiter)
                n -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class _Thread:
    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._kernel = running()
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name = name or "thread"
        self.daemon = True
        self._task: Task | None = None
        self._kernel.threads += 1
        self._number = self._kernel.threads

    def __hash__(self) -> int:
        return self._number  # a pool waits for its threads in the order of a set

    def start(self) -> None:
        if self._kernel.current.life.dead:
            raise Killed
        self._task = self._kernel.start(self.run, self._kernel.current.life, self.name)
        self._task.facade = self

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    @property
    def ident(self) -> int | None:
        return None if self._task is None else self._task.number

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.ended and not self._kernel.over

    def join(self, timeout: float | None = None) -> None:
        if not self.is_alive() or self._task is None:
            return
        me = self._kernel.current
        self._task.joiners.append(me)
        if not self._kernel.park(timeout):
            _forget(self._task.joiners, me)


def _chosen(real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
    """The simulated one to a task, the real one to everybody else."""

    def choose(*args: Any, **kw: Any) -> Any:
        kernel = _kernel
        if kernel is None or kernel.over or kernel.task_here() is None:
            return real(*args, **kw)
        return simulated(*args, **kw)

    return choose


def _current_thread() -> Any:
    task = running().current
    if task.facade is None:
        task.facade = _Thread(name=task.name)
        task.facade._task = task
    return task.facade


@contextmanager
def _simulated(kernel: Kernel) -> Iterator[None]:
    global _kernel
    assert _kernel is None, "one simulation at a time"
    _kernel = kernel
    replaced: list[tuple[Any, str, Any]] = [
        (threading, "Lock", _chosen(threading.Lock, _Lock)),
        (threading, "RLock", _chosen(threading.RLock, _RLock)),
        (threading, "Condition", _chosen(threading.Condition, _Condition)),
        (threading, "Thread", _chosen(threading.Thread, _Thread)),
        (threading, "current_thread", _chosen(threading.current_thread, _current_thread)),
        (threading, "get_ident", _chosen(threading.get_ident, lambda: kernel.current.number)),
        (queue, "SimpleQueue", _chosen(queue.SimpleQueue, queue._PySimpleQueue)),  # type: ignore[attr-defined]
        (pools, "_threads_queues", {}),
        (os, "urandom", _chosen(os.urandom, lambda size: kernel.entropy.randbytes(size))),
        (time, "sleep", _chosen(time.sleep, kernel.sleep)),
        # Bound when they were defined:
        *((call, "__defaults__", (lambda: kernel.now,)) for call in (fan_out, timed)),
        *(
            (
                call,
                "__kwdefaults__",
                (call.__kwdefaults__ or {}) | {"sleep": kernel.sleep, "rng": kernel.entropy.random},
            )
            for call in (retrying.repeat, retrying.RetryingStore.__init__)
        ),
    ]
    kept = [(place, name, getattr(place, name)) for place, name, _ in replaced]
    try:
        for place, name, value in replaced:
            setattr(place, name, value)
        yield
    finally:
        for place, name, value in kept:
            setattr(place, name, value)
        _kernel = None
