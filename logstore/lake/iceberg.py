"""Iceberg, through `pyiceberg` and whatever catalog it is configured with.

Exactly once by the catalog's compare-and-set: a commit names the snapshot that was loaded, and carries the next
offsets as table properties beside the new snapshot, in one change. pyiceberg would try again by itself on top of
somebody else's snapshot, and rows would be there twice: its retries are off. Offsets are in each snapshot's summary
too, but a snapshot can expire; what counts is the property. Files carry Iceberg's field ids, because some readers go
by nothing else.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    NotInstalledError,
    TableAlreadyExistsError,
    ValidationError,
    ValidationException,
)
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, HourTransform

from logstore.errors import StoreUnavailable, UnsupportedStore
from logstore.lake.table_format import ENCODING, Bucket, DataFile, Source, SparkRead, bucket_of, in_a_line

logger = logging.getLogger(__name__)

T = TypeVar("T")
_OFFSETS = "logstore.offsets"
_RETRIES = "commit.retry.num-retries"
_SETTINGS = {
    _RETRIES: "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


def _asked_twice(call: Callable[[], T]) -> T:
    """An SQL catalog makes its tables, and a namespace, where it finds none. Of several that look at once all but one are
    refused by the database, each in its own words: they find what the other made the second time."""
    try:
        return call()
    except Exception as error:
        if not type(error).__module__.startswith("sqlalchemy."):
            raise
        return call()


class IcebergFormat:
    """`where` is `[CATALOG/]NAMESPACE.TABLE[?property=value&…]`: a catalog of pyiceberg's configuration, or its
    properties."""

    def __init__(self, where: str, partition_by: Bucket | None) -> None:
        path, _, query = where.partition("?")
        catalog, slash, name = path.partition("/")
        self._name = unquote(name if slash else catalog)
        if self._name.count(".") < 1:
            raise ValueError(
                f"target='iceberg:{path}': the table's name has a namespace, as in iceberg:CATALOG/shop.orders"
            )
        catalog = unquote(catalog) if slash else "default"
        properties = dict(parse_qsl(query, keep_blank_values=True))
        try:
            self._catalog: Catalog = _asked_twice(lambda: load_catalog(catalog, **properties))
        except (ValueError, TypeError, NotInstalledError):
            raise
        except Exception as error:  # of whatever the catalog is
            raise StoreUnavailable(
                f"{self._name}: its catalog cannot be asked ({in_a_line(error)})"
            ) from error
        self._partition_by = partition_by
        self._table: Table | None = None

    def load(self) -> bool:
        try:
            self._table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            self._table = None
        return self._table is not None

    def create(self, schema: pa.Schema, encoding: str) -> None:
        namespace = self._name.rpartition(".")[0]
        _asked_twice(lambda: self._catalog.create_namespace_if_not_exists(namespace))
        try:
            settings = {**_SETTINGS, ENCODING: encoding}
            with self._catalog.create_table_transaction(self._name, schema, properties=settings) as making:
                if self._partition_by is not None:
                    transform: Any = DayTransform() if self._partition_by == "day" else HourTransform()
                    with making.update_spec() as spec:
                        spec.add_field("timestamp", transform, self._partition_by)
        except (TableAlreadyExistsError, CommitFailedException) as error:
            logger.info("%s: somebody else made it (%s)", self._name, error)
        except UnsupportedPyArrowTypeException as error:
            raise ValueError(f"{self._name}: an Iceberg table cannot have these columns: {error}") from error

    @property
    def partition_by(self) -> Bucket | None:
        fields = self._loaded.spec().fields
        found = [str(field.transform) for field in fields]
        if found and found not in (["day"], ["hour"]):
            raise ValueError(
                f"{self._name} is partitioned by {self._loaded.spec()}: by day or hour is what we can fill"
            )
        return bucket_of(found[0]) if found else None

    @property
    def encoding(self) -> str:
        return str(self._loaded.properties.get(ENCODING, "json"))

    @property
    def version(self) -> str:
        snapshot = self._loaded.current_snapshot()
        return "none" if snapshot is None else str(snapshot.snapshot_id)

    @property
    def schema(self) -> pa.Schema:
        return without_ids(self.file_schema)

    @property
    def file_schema(self) -> pa.Schema:
        return _small(schema_to_pyarrow(self._loaded.schema()))

    def next_offset(self, source: Source) -> int | None:
        return self._offsets().get(str(source))

    def _offsets(self) -> dict[str, int]:
        found: dict[str, int] = json.loads(self._loaded.properties.get(_OFFSETS, "{}"))
        return found

    def folder(self, bucket: int | None) -> str:
        return "data/"

    def put(self, name: str, data: memoryview) -> None:
        path = self._path(name)
        try:
            with self._loaded.io.new_output(path).create() as out:
                out.write(bytes(data))
        except OSError as error:
            raise StoreUnavailable(f"{path}: the file cannot be stored ({in_a_line(error)})") from error

    def grow(self, schema: pa.Schema) -> None:
        try:
            with self._loaded.update_schema() as change:
                change.union_by_name(schema)
        except (ValueError, TypeError, ValidationError, ValidationException) as error:
            raise ValueError(
                f"{self._name}: the table cannot have these columns: {in_a_line(error)}"
            ) from error
        except Exception as error:  # as for `commit`
            logger.warning("%s: its schema was changed meanwhile, or cannot be now (%s)", self._name, error)

    def commit(self, files: Sequence[DataFile], offsets: Mapping[Source, int]) -> bool:
        if self._loaded.properties.get(_RETRIES) != "0":
            self._without_retries()
            return False
        state = json.dumps(self._offsets() | {str(source): offset for source, offset in offsets.items()})
        try:
            with self._loaded.transaction() as change:
                change.set_properties({_OFFSETS: state, **_SETTINGS})
                change.add_files(
                    [self._path(file.name) for file in files],
                    snapshot_properties={_OFFSETS: state},
                    check_duplicate_files=False,
                )
        except (
            Exception
        ) as error:  # a catalog's own, too: whatever it is, the next look at the table tells what came of it
            logger.warning(
                "%s: a commit behind snapshot %s did not go through (%s)", self._name, self.version, error
            )
            return False
        return True

    def _without_retries(self) -> None:
        """What counts for a commit is the property as it was loaded: it has to be there before. Somebody has set another
        number, or has made the table without us."""
        logger.warning("%s: %s is not 0, which would make rows twice: set again", self._name, _RETRIES)
        try:
            with self._loaded.transaction() as change:
                change.set_properties(_SETTINGS)
        except Exception as error:  # as for `commit`
            logger.warning("%s: it cannot be set (%s)", self._name, error)

    def compact(self) -> dict[str, int]:
        raise UnsupportedStore(
            f"{self._name}: pyiceberg cannot compact: use rewrite_data_files of Spark, optimize of Trino, or what your "
            "catalog offers; materializers may run meanwhile"
        )

    def files(self) -> list[str]:
        tasks = list(self._loaded.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise UnsupportedStore(
                f"{'.'.join(self._loaded.name())}: rows were deleted from this table in a way that its data files alone do "
                "not show (delete files): read it with Iceberg's own reader"
            )
        found = [task.file.file_path for task in tasks]
        return [unquote(urlsplit(path).path) if path.startswith("file:") else path for path in found]

    def read(self, columns: Sequence[str] | None) -> pa.RecordBatchReader:
        names = tuple(columns) if columns is not None else ("*",)
        reader = self._loaded.scan(selected_fields=names).to_arrow_batch_reader()
        schema = without_ids(_small(reader.schema))
        return pa.RecordBatchReader.from_batches(schema, (batch.cast(schema) for batch in reader))

    def spark_read(self) -> SparkRead:
        # The table's own description of that moment, as a table of its own: what comes later is not in it.
        return SparkRead("iceberg", self._loaded.metadata_location, {})

    @property
    def _loaded(self) -> Table:
        assert self._table is not None, "load() comes first"
        return self._table

    def _path(self, name: str) -> str:
        return f"{self._loaded.location().rstrip('/')}/{name}"


def _small(schema: pa.Schema) -> pa.Schema:
    """Arrow's plain types, where pyiceberg takes the large ones: field ids stay."""
    return pa.schema([_small_field(field) for field in schema])


def _small_field(field: pa.Field) -> pa.Field:
    return field.with_type(_small_type(field.type))


def _small_type(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([_small_field(kind.field(n)) for n in range(kind.num_fields)])
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_small_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_small_field(kind.key_field), _small_field(kind.item_field))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def without_ids(schema: pa.Schema) -> pa.Schema:
    """The same columns, without what a file says about them."""
    return pa.schema([_bare(field) for field in schema])


def _bare(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_bare(kind.field(n)) for n in range(kind.num_fields)])
    elif pa.types.is_list(kind):
        kind = pa.list_(_bare(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_bare(kind.key_field), _bare(kind.item_field))
    return pa.field(field.name, kind, field.nullable)
