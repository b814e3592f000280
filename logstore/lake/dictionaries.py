"""Which columns of a Parquet file get a dictionary: those whose values repeat.

Arrow's writer begins each row group with one for every column, and gives it up when it has grown too large. By then much of
the group is in it: the values are hashed for nothing, and a reader looks each of them up.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc


def that_repeat(rows: pa.Table) -> list[str]:
    """The paths, as Parquet names them, of those columns that have each value twice or more in the mean. `rows` stand for
    those that follow: where they mislead, a column has a dictionary for nothing, or none."""
    if not rows.num_rows:
        return []
    return [path for name in rows.column_names for path in _of_column(name, rows.column(name))]


def _of_column(path: str, column: pa.ChunkedArray) -> Iterator[str]:
    kind = column.type
    if pa.types.is_struct(kind):
        for number, field in enumerate(kind):
            yield from _of_column(f"{path}.{field.name}", pc.struct_field(column, number))
    elif pa.types.is_nested(kind):
        yield from _leaves(path, kind)
    elif 2 * pc.count_distinct(column, mode="all").as_py() <= len(column):
        yield path


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """Of lists and maps all: nobody looks at what is in them."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_nested(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path
