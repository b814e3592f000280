"""numpy, imported when it is first used: it takes longer to import than a look at a small store takes, and such a look needs
none of it. `from logstore.format.lazy_numpy import np`; type checkers see numpy itself.

A name that was asked for once is an ordinary attribute from then on, as cheap as one of the module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            value = getattr(numpy, name)
            setattr(self, name, value)
            return value

    np = _Numpy()
