"""Which column a field of a value becomes: one of its own name, unless the log has a column of that name."""

from __future__ import annotations

from dataclasses import dataclass

_PREFIX = "value_"


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """`taken`: the log's own columns, in lower case. A field of such a name, in any case, becomes `value_‹name›`."""

    taken: frozenset[str]

    def column(self, field: str) -> str:
        return f"{_PREFIX}{field}" if self._is_taken(field) else field

    def field(self, column: str) -> str:
        bare = column.removeprefix(_PREFIX)
        return bare if bare != column and self._is_taken(bare) else column

    def _is_taken(self, name: str) -> bool:
        """By a column of ours, or by a field that gives way to one."""
        lower = name.lower()
        return lower in self.taken or (
            lower.startswith(_PREFIX) and self._is_taken(lower.removeprefix(_PREFIX))
        )
