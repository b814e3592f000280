"""The broker: every part wired to every other, and the table that says who answers which API.

Produce and Fetch have handlers of their own, which work on raw frames. All other requests are decoded by
their schema, run as a coroutine, and encoded. A handler that fails is a bug: its client is dropped, the error
logged with its traceback, and nobody else is affected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from broker_shim.auth.acl_store import AclStore
from broker_shim.auth.acls import Authorizer, Operation, Resource
from broker_shim.auth.sasl import Users
from broker_shim.auth.user_store import UserStore
from broker_shim.config import BrokerConfig
from broker_shim.coordinated import Coordinated
from broker_shim.groups.consumer_group import ConsumerLimits
from broker_shim.groups.coordinator import Coordinator
from broker_shim.groups.member import Limits
from broker_shim.handlers.call import Call, Handler, allowed
from broker_shim.handlers.cluster.cluster_api import ClusterApi
from broker_shim.handlers.cluster.config_api import ConfigApi
from broker_shim.handlers.cluster.metadata import MetadataApi, api_versions
from broker_shim.handlers.coordinators.classic_member_api import ClassicMemberApi
from broker_shim.handlers.coordinators.committed_api import OffsetApi
from broker_shim.handlers.coordinators.consumer_group_api import ConsumerGroupApi
from broker_shim.handlers.coordinators.group_api import GroupApi
from broker_shim.handlers.coordinators.transaction_api import TransactionApi
from broker_shim.handlers.records.fetch_handler import FetchHandler
from broker_shim.handlers.records.offsets_api import LogApi
from broker_shim.handlers.records.produce import ProduceHandler
from broker_shim.handlers.security.acl_api import AclApi
from broker_shim.handlers.security.sasl_api import BEFORE_LOGIN, SaslApi, Tokens
from broker_shim.handlers.security.scram_api import ScramApi
from broker_shim.handlers.topics.admin import AdminApi
from broker_shim.metrics import Counters, Sample, store_samples, writer_samples
from broker_shim.net.connection import Connection, Parts
from broker_shim.net.peers import Peers, login_from, tls_of
from broker_shim.partitions.cluster import Cluster, Node
from broker_shim.partitions.hosted_partition import Host, HostedPartition
from broker_shim.partitions.leader_epochs import LeaderEpochs
from broker_shim.partitions.partition_registry import PartitionRegistry
from broker_shim.transactions.transaction_coordinator import TransactionCoordinator
from broker_shim.wire import messages
from broker_shim.wire.apis import BY_KEY, Api
from broker_shim.wire.codes import Code
from broker_shim.wire.primitives import MalformedRequest, RequestHeader
from logstore.config import Ack
from logstore.errors import Fenced, LogStoreError, StoreError, UnknownTopic, needs
from logstore.store import Store

log = logging.getLogger(__name__)
WORKERS = 16
LOOK_AGAIN_S = 1.0
SIGN_OFF_S = 5.0
"""How much longer than its timeout a stop may take: to sign off with the other brokers and to end its threads."""
LARGE_BYTES = 32 << 10
"""Messages of the control plane from this size on are decoded and encoded in a worker thread."""


class Broker:
    """Made on the event loop that serves it. `start` before clients come, `stop` after they have gone."""

    def __init__(self, store: Store, config: BrokerConfig, me: Node, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._config = config
        self._loop = loop
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="broker-worker")
        self.counters = Counters()
        self.cluster = Cluster(
            store.objects,
            me,
            interval_s=config.heartbeat_interval,
            timeout_s=config.heartbeat_timeout,
            monotonic=loop.time,
        )
        ack: Ack = "durable" if config.flush_on_ack else "buffered"
        host = Host(store, loop, self._workers, config.follow_interval, ack, config.max_message_bytes)
        self.partitions = PartitionRegistry(host, self.cluster, self._on_lost)
        self.coordinator = Coordinator(
            self.partitions,
            self.cluster,
            loop,
            Limits(
                config.group_min_session_timeout,
                config.group_max_session_timeout,
                config.group_initial_rebalance_delay,
            ),
            ConsumerLimits(config.group_consumer_session_timeout, config.group_consumer_heartbeat_interval),
            shards=config.offsets_partitions,
            offsets_retention_s=config.offsets_retention,
        )
        self.transactions = TransactionCoordinator(
            self.partitions,
            self.coordinator,
            self.cluster,
            Peers(
                f"broker-{me.node_id}",
                tls_of(config.tls_cert, config.tls_key, config.peer_ca),
                login_from(config.peer_sasl),
            ),
            loop,
            shards=config.offsets_partitions,
            id_expiration_s=config.transactional_id_expiration,
        )
        self.coordinated = Coordinated(store, self.coordinator, self.transactions)
        super_users = [name for name in config.super_users.split(";") if name]
        self.authorizer = Authorizer(enabled=config.acls, super_users=super_users)
        self._acls = AclApi(AclStore(store.objects), self.authorizer, self.partitions)
        self._users = Users(config.sasl, UserStore(store.objects))
        self._sasl = SaslApi(self._users if config.sasl else None, _tokens(config), self.partitions, loop)
        self._needs_certificate = bool(config.tls_client_ca)
        self._produce = ProduceHandler(
            self.partitions,
            self.counters,
            loop,
            self._may_write,
            self._may_write_as,
            self.transactions.verify,
            ack=ack,
        )
        self._fetch = FetchHandler(
            self.partitions,
            self.counters,
            loop,
            self._may_read,
            lambda: self.authorizer.rules,
            max_bytes=config.fetch_max_bytes,
        )
        self._handlers = self._table()
        self._beating: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._look_at = 0.0

    def _table(self) -> dict[Api, Handler]:
        consumers = ConsumerGroupApi(self.coordinator, self.partitions, self._loop)
        mixed = ClassicMemberApi(consumers.topics, self.partitions, self._loop)
        groups = GroupApi(self.coordinator, self.transactions.shards, self.cluster, mixed, self._loop)
        offsets = OffsetApi(self.coordinator, self.partitions, self.transactions.verify)
        transactions = TransactionApi(self.transactions, self.coordinator, self.partitions, self._config)
        logs = LogApi(self.partitions)
        admin = AdminApi(self._store, self.partitions, self.coordinator, self.cluster, self._config)
        configs = ConfigApi(self._store, self.partitions, self.cluster, self._config)
        cluster = ClusterApi(self.partitions, self.cluster, self._config)
        scram = ScramApi(self._users, self.partitions)
        metadata = MetadataApi(
            self.partitions,
            self.cluster,
            LeaderEpochs(self.partitions, self.cluster, self._loop),
            self._config,
        )
        return {
            Api.METADATA: metadata.metadata,
            Api.DESCRIBE_CLUSTER: metadata.describe_cluster,
            Api.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
            Api.INIT_PRODUCER_ID: transactions.init_producer_id,
            Api.ADD_PARTITIONS_TO_TXN: transactions.add_partitions,
            Api.ADD_OFFSETS_TO_TXN: transactions.add_offsets,
            Api.END_TXN: transactions.end,
            Api.WRITE_TXN_MARKERS: transactions.write_markers,
            Api.TXN_OFFSET_COMMIT: offsets.commit_in_transaction,
            Api.DESCRIBE_PRODUCERS: transactions.describe_producers,
            Api.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
            Api.LIST_TRANSACTIONS: transactions.list_transactions,
            Api.LIST_OFFSETS: logs.list_offsets,
            Api.OFFSET_FOR_LEADER_EPOCH: logs.offset_for_leader_epoch,
            Api.DELETE_RECORDS: logs.delete_records,
            Api.FIND_COORDINATOR: groups.find_coordinator,
            Api.JOIN_GROUP: groups.join,
            Api.SYNC_GROUP: groups.sync,
            Api.HEARTBEAT: groups.heartbeat,
            Api.LEAVE_GROUP: groups.leave,
            Api.LIST_GROUPS: groups.list_groups,
            Api.DESCRIBE_GROUPS: groups.describe_groups,
            Api.DELETE_GROUPS: groups.delete_groups,
            Api.CONSUMER_GROUP_HEARTBEAT: consumers.heartbeat,
            Api.CONSUMER_GROUP_DESCRIBE: consumers.describe,
            Api.OFFSET_COMMIT: offsets.commit,
            Api.OFFSET_FETCH: offsets.fetch,
            Api.OFFSET_DELETE: offsets.delete,
            Api.CREATE_TOPICS: admin.create_topics,
            Api.DELETE_TOPICS: admin.delete_topics,
            Api.CREATE_PARTITIONS: admin.create_partitions,
            Api.DESCRIBE_CONFIGS: configs.describe,
            Api.ALTER_CONFIGS: configs.alter,
            Api.INCREMENTAL_ALTER_CONFIGS: configs.alter_incrementally,
            Api.LIST_CONFIG_RESOURCES: configs.list_resources,
            Api.DESCRIBE_LOG_DIRS: cluster.describe_log_dirs,
            Api.ELECT_LEADERS: cluster.elect_leaders,
            Api.LIST_PARTITION_REASSIGNMENTS: cluster.list_reassignments,
            Api.ALTER_PARTITION_REASSIGNMENTS: cluster.alter_reassignments,
            Api.DESCRIBE_CLIENT_QUOTAS: cluster.describe_quotas,
            Api.ALTER_CLIENT_QUOTAS: cluster.alter_quotas,
            Api.DESCRIBE_USER_SCRAM_CREDENTIALS: scram.describe,
            Api.ALTER_USER_SCRAM_CREDENTIALS: scram.alter,
            Api.DESCRIBE_ACLS: self._acls.describe,
            Api.CREATE_ACLS: self._acls.create,
            Api.DELETE_ACLS: self._acls.delete,
            Api.SASL_HANDSHAKE: self._sasl.handshake,
            Api.SASL_AUTHENTICATE: self._sasl.authenticate,
        }

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        if self.authorizer.enabled:
            await self._acls.reload()
        self.cluster.adopt(await self.partitions.run(self.cluster.register))
        if self.cluster.is_several:
            self._beating = self._loop.create_task(self._beat())

    def begin_drain(self) -> None:
        """No request waits for something that may never come: fetches answer with what there is, joins with nothing."""
        self._fetch.end_all()
        self.coordinator.shards.end_all()
        self.transactions.shards.end_all()

    async def stop(self, timeout_s: float) -> bool:
        """Make everything durable and let go. Clients have gone by now.

        False if not everything could be stored in time. Threads that wait for the store may be left then.
        """
        for task in (self._beating, self._looking):
            if task is not None:
                task.cancel()
        self.transactions.close()
        self.coordinator.close()
        for hosted in self.partitions.all_hosted():
            hosted.close()
        closer = ThreadPoolExecutor(1, thread_name_prefix="broker-closer")
        closing = self._loop.run_in_executor(closer, self._close, timeout_s)
        closer.shutdown(wait=False)
        ended, _ = await asyncio.wait([closing], timeout=timeout_s + SIGN_OFF_S)
        if not ended:
            log.error("the store does not answer; whoever waits for it is left behind")
        return bool(ended) and closing.result()

    def _close(self, timeout_s: float) -> bool:
        """On a thread of its own: the workers may all wait for a store that hangs. False if something is not stored."""
        stored = True
        try:
            self._store.close(timeout_s)
        except LogStoreError as error:
            log.error("%s", error)  # it names what is not stored, by offset
            stored = False
        self.cluster.leave()
        self._workers.shutdown(cancel_futures=True)
        return stored

    async def _beat(self) -> None:
        has_shards = (
            False  # whether the transactions that this broker leads in this view are loaded, or being loaded
        )
        while True:
            await asyncio.sleep(self.cluster.interval_s)
            try:
                view = await self.partitions.run(self.cluster.beat)
            except (StoreError, OSError) as error:
                log.warning("no heartbeat this time: %s", error)
                continue
            try:
                if self.authorizer.enabled:
                    await self._acls.reload()
            except (LogStoreError, OSError) as error:
                log.warning("the access rules of before stay: %s", error)
            if self.cluster.adopt(view):
                log.info("brokers alive: %s", ", ".join(map(str, view.nodes)))
                has_shards = False
                self.transactions.shards.release_unled()
                self.coordinator.shards.release_unled()
                await self.partitions.release_unled()
            if not has_shards and self.cluster.is_settled:
                has_shards = True
                self.transactions.load_soon()

    def _on_lost(self, partition: HostedPartition, error: BaseException) -> None:
        self.coordinator.shards.lost(partition)
        self.transactions.shards.lost(partition)
        if self._looking is None and isinstance(error, Fenced | UnknownTopic):
            self._looking = self._loop.create_task(self._look_around())

    def _look_again(self) -> None:
        """A client asks who leads, and what was ours is another's, at a broker without heartbeats: that one may have lost it
        since to a third. This answer says what is known; the next one, after a look, what is."""
        now = self._loop.time()
        if self._looking is None and self.cluster.was_replaced_somewhere and now >= self._look_at:
            self._look_at = now + LOOK_AGAIN_S
            self._looking = self._loop.create_task(self._look_around())

    async def _look_around(self) -> None:
        """Somebody fenced us: find out who is there, so that metadata can tell clients. Until then nobody leads what
        was lost, so it is asked until there is an answer.
        """
        try:
            while True:
                try:
                    self.cluster.adopt(await self.partitions.run(self.cluster.look_around))
                    return
                except (StoreError, OSError) as error:
                    log.warning("could not look for other brokers: %s", error)
                await asyncio.sleep(LOOK_AGAIN_S)
        finally:
            self._looking = None

    @property
    def problem(self) -> str | None:
        """Why this broker should get no clients now, or None."""
        if self.cluster.replaced:
            return f"another broker with node id {self.cluster.me.node_id} has started"
        reachable = self._store._health_report().store_reachable
        return None if reachable else "the object store cannot be reached"

    def samples(self) -> Iterable[Sample]:
        yield from self.counters.samples()
        health = self._store._health_report()
        yield "broker_shim_store_reachable", {}, float(health.store_reachable)
        for operation, stats in sorted(self._store.metrics().items()):
            yield "broker_shim_store_requests_total", {"operation": operation}, stats.requests
        yield "broker_shim_buffered_bytes", {}, health.buffered_bytes
        yield "broker_shim_cached_bytes", {}, health.cached_bytes
        yield "broker_shim_waiting_fetches", {}, len(self._fetch.waiting)
        yield "broker_shim_kept_fetches", {}, len(self._fetch.kept)
        yield "broker_shim_kept_fetch_partitions", {}, self._fetch.kept.partitions
        yield "broker_shim_owned_partitions", {}, sum(each.is_owned for each in self.partitions.all_hosted())
        yield "broker_shim_brokers_alive", {}, len(self.cluster.view.nodes)
        yield from writer_samples(self._store.writer_metrics())
        lags = self.coordinated.lags()
        yield from store_samples(self._store, {name: partial(lags.__getitem__, name) for name in lags})
        held = self.coordinated.transactions()
        yield "broker_shim_open_transactions", {}, len(held)
        yield (
            "broker_shim_oldest_transaction_seconds",
            {},
            max((each["seconds"] for each in held), default=0.0),
        )

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def needs_login(self) -> bool:
        return self._sasl.is_required

    def dispatch(
        self, connection: Connection, header: RequestHeader, frame: memoryview
    ) -> Parts | asyncio.Future[Parts] | None:
        api = BY_KEY.get(header.api_key)
        if api is None:
            raise MalformedRequest("no API of this broker")
        self.counters.requests[header.api_key] += 1
        if api in (Api.METADATA, Api.FIND_COORDINATOR):
            self._look_again()
        if not api.low <= header.version <= api.high:
            if api is Api.API_VERSIONS:
                # Whatever the client speaks, it reads version 0 and learns from it what to speak.
                return (messages.encode(api, 0, api_versions(Code.UNSUPPORTED_VERSION)),)
            raise MalformedRequest(
                f"client {(header.client_id or '')[:60]!r} did not heed ApiVersions, which offers {api.low} to {api.high}"
            )
        if connection.principal is None:
            self._identify(connection, api)
        elif connection.login_ends is not None and api not in BEFORE_LOGIN:
            self._sasl.check_login(connection)
        if api is Api.FETCH:
            return self._fetch.handle(connection, header, frame)
        if api is Api.PRODUCE:
            return self._produce.handle(connection, header, frame)
        if len(frame) > LARGE_BYTES and api is not Api.API_VERSIONS:
            return self._loop.create_task(self._handle_large(api, connection, header, frame))
        request = messages.decode(api, header.version, frame, header.body)
        if api is Api.API_VERSIONS:
            return (messages.encode(api, header.version, api_versions()),)
        return self._loop.create_task(self._handle(api, Call(connection, header, request, self.authorizer)))

    async def _handle(self, api: Api, call: Call) -> Parts:
        response = await self._handlers[api](call)
        return (messages.encode(api, call.version, response),)

    async def _handle_large(
        self, api: Api, connection: Connection, header: RequestHeader, frame: memoryview
    ) -> Parts:
        """In a worker thread: decoding it, and encoding an answer of its size, would hold up other clients."""
        run = self.partitions.run
        request = await run(messages.decode, api, header.version, frame, header.body)
        response = await self._handlers[api](Call(connection, header, request, self.authorizer))
        return (await run(messages.encode, api, header.version, response),)

    def _identify(self, connection: Connection, api: Api) -> None:
        """Who is this? Only what TLS and SASL have proved counts."""
        if self._sasl.is_required:
            if api not in BEFORE_LOGIN:
                raise MalformedRequest("authentication comes first")
        elif self._needs_certificate:
            name = connection.tls_principal
            if name is None:
                raise MalformedRequest("a client certificate is required")
            connection.principal = f"User:{name}"

    def _may_write(self, connection: Connection, topic: str) -> bool:
        return allowed(self.authorizer, connection, Operation.WRITE, Resource.TOPIC, topic)

    def _may_write_as(self, connection: Connection, transactional_id: str) -> bool:
        return allowed(
            self.authorizer, connection, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id
        )

    def _may_read(self, connection: Connection, topic: str) -> bool:
        return allowed(self.authorizer, connection, Operation.READ, Resource.TOPIC, topic)


def _tokens(config: BrokerConfig) -> Tokens | None:
    if not config.oauth_keys:
        return None
    with needs("oauth"):
        from broker_shim.auth import oauth
    return oauth.Tokens(
        oauth.KeySet(config.oauth_keys),
        issuer=config.oauth_issuer,
        audience=config.oauth_audience,
        claim=config.oauth_principal_claim,
    )
