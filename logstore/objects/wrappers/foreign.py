"""`ForeignErrors`: what a store of somebody else's raises, in our words.

A store that is not ours may raise what its client library does. Such an error does not say that nothing happened, so it is
`Indeterminate`: a read is tried again, and after a conditional put somebody looks at what is there. What it was stays its
cause.

That holds for what is no `Exception` too, such as asyncio's cancellation: let through, it would end the thread that uploads,
and nobody would upload any more. Only on the main thread is it let through, where Ctrl-C and a signal's `sys.exit` arrive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from logstore.errors import Indeterminate, LogStoreError
from logstore.objects.protocol import ObjectInfo
from logstore.objects.wrappers.wrapped import WrappedStore

T = TypeVar("T")


class ForeignErrors(WrappedStore):
    """An `ObjectStore` round `inner` that raises our own errors only. Thread-safe."""

    def _through(self, operation: str, key: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except LogStoreError:
            raise
        except BaseException as error:
            raise _ours(operation, key, error) from error

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        try:
            yield from self.inner.list(prefix, start_after)
        except (LogStoreError, GeneratorExit):  # the latter: the caller has seen enough
            raise
        except BaseException as error:
            raise _ours("list", prefix, error) from error


def _ours(operation: str, key: str, error: BaseException) -> Indeterminate:
    if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
        raise error
    return Indeterminate(
        f"{operation} {key}: {type(error).__name__}: {error}. It may have happened: look before you try again"
    )
