"""Delta Lake, through `deltalake` (delta-rs): no catalog, the table's log lies beside its files.

Exactly once by the format's own transactions: the app id is a partition of a topic's incarnation, its version the next
offset. A commit is made with the very handle whose versions were read: delta-rs then finds a commit of the same app
id in between and refuses ours. (A handle that was loaded again would not know, and rows would be there twice.)
Others may compact meanwhile: that touches no app id, and delta-rs commits behind it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, Transaction

from logstore.errors import UnsupportedStore
from logstore.lake.table_format import ENCODING, Bucket, DataFile, Source, SparkRead, bucket_of, in_a_line
from logstore.objects import ObjectStore, RetryingStore, RetryPolicy, open_url
from logstore.objects.homes.local import LocalStore
from logstore.objects.url import url_of

logger = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_IN_FILES = frozenset({"deletionVectors", "columnMapping", "typeWidening", "typeWidening-preview"})
"""Features of a table by which a row is another one than its Parquet file says."""
_FORGETS = "delta.setTransactionRetentionDuration"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""How a path says null."""
_RETRIES = RetryPolicy(attempts=6, base_s=0.1, cap_s=3.0)


class DeltaFormat:
    """`url` is a folder's path, `file:///folder`, or `s3://bucket/prefix?endpoint_url=…`; credentials are boto3's."""

    def __init__(self, url: str, partition_by: Bucket | None) -> None:
        self._partition_by = partition_by
        bare: Any = open_url(url)
        if isinstance(bare, LocalStore):
            # The table's log is written by delta-rs, for whoever the umask says: so are its files.
            bare = LocalStore(bare.root, private=False)
            self._location, self._bucket = str(bare.root), None
        elif hasattr(bare, "for_other_clients"):
            self._location, self._bucket = f"s3://{bare.bucket}/{bare.prefix}".rstrip("/"), bare
        else:
            raise UnsupportedStore(
                f"a Delta table lies in a folder or a bucket, not in {url_of(bare) or bare!r}"
            )
        if "%" in self._location:
            raise UnsupportedStore(
                f"{self._location}: delta-rs takes a % in a table's place for a sign that stands for another, and would "
                "look for its files elsewhere. Use a place without"
            )
        self._objects: ObjectStore = RetryingStore(bare, _RETRIES)
        self._handle: DeltaTable | None = None

    def load(self) -> bool:
        try:
            self._handle = DeltaTable(self._location, storage_options=self._options())
        except TableNotFoundError:
            self._handle = None
        return self._handle is not None

    def create(self, schema: pa.Schema, encoding: str) -> None:
        columns = list(schema)
        if self._partition_by is not None:
            kind = pa.date32() if self._partition_by == "day" else pa.string()
            columns.append(pa.field(self._partition_by, kind))
        try:
            delta_schema = Schema.from_arrow(pa.schema(columns))
        except Exception as error:
            raise self._refused(error) from error
        try:
            DeltaTable.create(
                self._location,
                delta_schema,
                mode="ignore",
                partition_by=[self._partition_by] if self._partition_by else None,
                configuration={ENCODING: encoding},
                raise_if_key_not_exists=False,
                storage_options=self._options(),
            )
        except CommitFailedError as error:
            logger.info("%s: somebody else made it (%s)", self._location, error)

    @property
    def partition_by(self) -> Bucket | None:
        columns = self._loaded.metadata().partition_columns
        if len(columns) > 1:
            raise ValueError(
                f"{self._location} is partitioned by {', '.join(columns)}: by day or hour is what we can fill"
            )
        return bucket_of(columns[0]) if columns else None

    @property
    def encoding(self) -> str:
        return str(self._loaded.metadata().configuration.get(ENCODING, "json"))

    @property
    def version(self) -> str:
        return str(self._loaded.version())

    @property
    def schema(self) -> pa.Schema:
        names = set(self._loaded.metadata().partition_columns)
        return pa.schema(
            [field for field in pa.schema(self._loaded.schema().to_arrow()) if field.name not in names]
        )

    @property
    def file_schema(self) -> pa.Schema:
        return self.schema

    def next_offset(self, source: Source) -> int | None:
        if _FORGETS in self._loaded.metadata().configuration:
            raise ValueError(
                f"{self._location} has the property {_FORGETS}: Delta would forget how far the table is, and rows would be "
                "there twice. Unset it"
            )
        found: int | None = self._loaded.transaction_version(str(source))
        return found

    def folder(self, bucket: int | None) -> str:
        # The commit says which day it is; some readers look at the path all the same.
        return "".join(f"{name}={value or _NO_VALUE}/" for name, value in self._values(bucket).items())

    def put(self, name: str, data: memoryview) -> None:
        self._objects.put(name, data)

    def grow(self, schema: pa.Schema) -> None:
        try:
            self._loaded.alter.add_columns(Schema.from_arrow(schema).fields)
        except (DeltaError, OSError) as error:  # the next look tells what is still missing
            logger.info("%s: its schema was changed meanwhile, or cannot be now (%s)", self._location, error)
        except Exception as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> ValueError:
        """What delta-rs says of columns is a bare `Exception`."""
        return ValueError(f"{self._location}: a Delta table cannot have these columns: {in_a_line(error)}")

    def commit(self, files: Sequence[DataFile], offsets: Mapping[Source, int]) -> bool:
        now_ms = time.time_ns() // 1_000_000
        actions = [
            AddAction(file.name, file.size, self._values(file.bucket), now_ms, True, _statistics(file))
            for file in files
        ]
        transactions = [Transaction(str(source), offset, now_ms) for source, offset in offsets.items()]
        try:
            self._loaded.create_write_transaction(
                list(actions),
                "append",
                self._loaded.schema(),
                partition_by=self._loaded.metadata().partition_columns or None,
                commit_properties=CommitProperties(app_transactions=transactions),
            )
        except (DeltaError, OSError) as error:
            logger.info(
                "%s: a commit behind version %s did not go through (%s)", self._location, self.version, error
            )
            return False
        return True

    def compact(self) -> dict[str, int]:
        done = self._loaded.optimize.compact()
        return {"files_added": int(done["numFilesAdded"]), "files_removed": int(done["numFilesRemoved"])}

    def files(self) -> list[str]:
        protocol = self._loaded.protocol()
        needed = set(
            protocol.reader_features or (["columnMapping"] if protocol.min_reader_version == 2 else [])
        )
        if unseen := needed & _NOT_IN_FILES:
            raise UnsupportedStore(
                f"{self._location}: its files alone do not show what its rows are ({', '.join(sorted(unseen))}): rows may "
                "have been deleted, columns renamed: read it with Delta's own reader"
            )
        # Of the table's own place they have spaces and the like as a URL has them, and of the files in it as they are.
        root = self._loaded.table_uri.removeprefix("file://")
        uris = [uri.removeprefix("file://") for uri in self._loaded.file_uris()]
        return [f"{self._location}/{uri.removeprefix(root)}" if uri.startswith(root) else uri for uri in uris]

    def read(self, columns: Sequence[str] | None) -> pa.RecordBatchReader:
        dataset = self._loaded.to_pyarrow_dataset()
        names = list(columns) if columns is not None else self.schema.names
        return dataset.scanner(columns=names).to_reader()

    def spark_read(self) -> SparkRead:
        return SparkRead("delta", self._location, {"versionAsOf": self.version})

    @property
    def _loaded(self) -> DeltaTable:
        assert self._handle is not None, "load() comes first"
        return self._handle

    def _options(self) -> dict[str, str] | None:
        if self._bucket is None:
            return None
        found: dict[str, str] = self._bucket.for_other_clients()
        names = {
            "endpoint_url": "AWS_ENDPOINT_URL",
            "region": "AWS_REGION",
            "access_key_id": "AWS_ACCESS_KEY_ID",
            "secret_access_key": "AWS_SECRET_ACCESS_KEY",
            "session_token": "AWS_SESSION_TOKEN",
        }
        options = {names[name]: value for name, value in found.items()}
        if found.get("endpoint_url", "").startswith("http:"):
            options["AWS_ALLOW_HTTP"] = "true"
        return options | {"aws_conditional_put": "etag"}

    def _values(self, bucket: int | None) -> dict[str, str | None]:
        kind = self.partition_by
        return {} if kind is None else {kind: None if bucket is None else partition_value(bucket, kind)}


def partition_value(bucket: int, kind: Bucket) -> str:
    """`2026-11-17`, or `2026-11-17-05` for an hour: as text they sort by time."""
    if kind == "day":
        return (date(1970, 1, 1) + timedelta(days=bucket)).isoformat()
    return (_EPOCH + timedelta(hours=bucket)).strftime("%Y-%m-%d-%H")


def _statistics(file: DataFile) -> str:
    lows: dict[str, int | str] = {"offset": file.offsets[0]}
    highs: dict[str, int | str] = {"offset": file.offsets[1]}
    if file.times_us is not None:
        lows["timestamp"], highs["timestamp"] = (
            (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="milliseconds")
            for us in (file.times_us[0], file.times_us[1] + 999)
        )
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": lows,
            "maxValues": highs,
            "nullCount": {"offset": 0, "timestamp": file.without_time},
        }
    )
