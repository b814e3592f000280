"""Which columns of a table somebody wants, and which fields of its structs."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def projected(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """The columns of these names, in this order. `payload.size` is the column `payload` with its field `size` alone; a
    struct's fields keep the order that they have in the table. A column whose own name has a dot in it goes first."""
    wanted: dict[str, list[str] | None] = {}
    for name in names:
        column, inner = _found(schema, name)
        before = wanted.get(column, [])
        if not column or before is None or (inner is None and column in wanted) or inner in before:
            raise ValueError(
                f"columns={list(names)!r}: name some of {', '.join(schema.names)}, each once, or fields of structs "
                "among them, such as payload.size"
            )
        wanted[column] = None if inner is None else [*before, inner]
    if not wanted:
        raise ValueError(f"columns={list(names)!r}: name some of {', '.join(schema.names)}")
    return pa.schema([_narrowed(schema.field(column), inner) for column, inner in wanted.items()])


def _found(schema: pa.Schema, name: str) -> tuple[str, str | None]:
    """The column, and what of it; an empty name if there is none."""
    if name in schema.names:
        return name, None
    at = name.find(".")
    while at >= 0:
        column, inner = name[:at], name[at + 1 :]
        if column in schema.names and pa.types.is_struct(schema.field(column).type):
            within = pa.schema(list(schema.field(column).type))
            if _found(within, inner)[0]:
                return column, inner
        at = name.find(".", at + 1)
    return "", None


def _narrowed(field: pa.Field, inner: list[str] | None) -> pa.Field:
    if inner is None:
        return field
    chosen = projected(pa.schema(list(field.type)), inner)
    order = [one.name for one in field.type]
    return field.with_type(pa.struct(sorted(chosen, key=lambda one: order.index(one.name))))
