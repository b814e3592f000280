"""CRC-32C, which every object and every batch carries.

The package `crc32c` looks its own version up among all that is installed when it is imported, and so brings in a parser of
e-mail and of zip files: a fifth of what a short command takes. Its extension is loaded by itself here; where there is none
to be found, the package is.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

__all__ = ["crc32c"]


def _function() -> Callable[..., int]:
    package = PathFinder.find_spec("crc32c")
    inside = None if package is None else package.submodule_search_locations
    found = None if inside is None else PathFinder.find_spec("crc32c._crc32c", inside)
    if found is None or found.loader is None:
        import crc32c as whole

        return whole.crc32c
    extension = module_from_spec(found)
    found.loader.exec_module(extension)
    function: Callable[..., int] = extension.crc32c
    return function


crc32c = _function()
"""`crc32c(data, value=0)`: the checksum of `data`, or of what `value` is the checksum of with `data` behind it."""
