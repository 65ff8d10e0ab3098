"""The report of a server: its records and their fields. docs/status.md says what each field means.

The server fills the records in (``report``), and sends them as JSON. ``smb3server status`` and the web page read the
same records.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

SCHEMA = 2
"""Version of the report's fields. It grows when a field changes its meaning or goes; new fields may come without."""


class Record(msgspec.Struct):
    """A JSON object."""


class Rates(Record):
    """What moved by second. ``read`` is what clients read."""

    read: float = 0.0
    written: float = 0.0
    rdma: float = 0.0
    requests: float = 0.0


class RdmaChoice(Record):
    """A fabric, and why it is served or not (``net.fabric_choice``)."""

    fabric: str
    host: str
    ports: list[int]
    served: bool
    reason: str
    remedy: str


class Turn(Record):
    """A request that blocked all clients."""

    when: float
    seconds: float
    processor: float
    command: str
    client: str
    path: str


class Watchdog(Record):
    """The requests that blocked all clients for longer than ``limit``."""

    limit: float
    count: int
    worst: Turn | None
    turns: list[Turn]


class Handles(Record):
    """Opens that outlive their connection, and the fate of former ones."""

    durable: int
    resilient: int
    persistent: int
    waiting: int
    restored: int
    reconnected: int
    replayed: int
    expired: int


class ServerRecord(Record):
    """The server itself."""

    version: str
    name: str
    guid: str
    since: float
    now: float
    clock: float
    addresses: list[str]
    shares: list[str]
    rdma: str
    rdma_choices: list[RdmaChoice]
    multichannel: bool
    limits: dict[str, tuple[int, int]]
    watchdog: Watchdog | None
    buffer_allocations: int
    opens: int
    path_lookups: int
    handles: Handles
    lock_count: int
    rates_seconds: float | UnsetType = UNSET
    rates: Rates | UnsetType = UNSET


class Caching(Record):
    """The oplock or lease of an open."""

    kind: str
    state: str
    breaking: bool
    key: str
    opens: int


class OpenRecord(Record):
    """An open."""

    id: str
    share: str
    path: str
    access: str
    rights: list[str]
    denies: list[str]
    caching: Caching | None
    locks: int
    directory: bool
    pipe: bool
    delete_pending: bool
    durable: str
    bytes_read: int
    bytes_written: int


class AwayRecord(OpenRecord, kw_only=True):
    """An open whose client is away."""

    user: str
    timeout: float


class OneSidedRecord(Record):
    """What a session reads and writes by RDMA without requests."""

    fabric: str
    files: int
    """Files lent to it now."""
    bytes_read: int
    """Bytes over its present RDMA connection."""
    bytes_written: int


class SessionRecord(Record):
    """A session."""

    session: str
    user: str
    guest: bool
    state: str
    client: str
    since: float
    encrypted: bool
    signing_required: bool
    rdma_protection: list[str]
    shares: list[str]
    channels: list[int]
    open_count: int
    opens: list[OpenRecord]
    one_sided: OneSidedRecord | UnsetType = UNSET
    """Unset without such a connection."""
    process: int | UnsetType = UNSET
    """Number of the process that has it, where a server has several."""
    rates: Rates | UnsetType = UNSET


class Sizes(Record):
    """The limits in force on a connection, in bytes. Values that only SMB Direct has are None on other transports."""

    max_read: int
    max_write: int
    max_transact: int
    max_message_received: int
    max_fragmented_received: int | None
    max_fragmented_sent: int | None
    read_depth: int | None
    credit_limit: int


class RdmaAnswer(Record):
    """Whether a channel uses RDMA, and if not, why (docs/rdma-used.md)."""

    code: str
    text: str
    remedy: str


class Compression(Record):
    """How the messages of a channel are compressed, and what that gave, in bytes."""

    algorithm: str
    patterns: bool
    """Whether runs of one byte are sent as such."""
    chained: bool
    received: int
    """Bytes of the messages that came compressed."""
    received_compressed: int
    """What these took on the way."""
    sent: int
    """Bytes of the data that was sent compressed."""
    sent_compressed: int


class ChannelRecord(Record):
    """A connection."""

    channel: int
    fabric: str
    peer: str
    local: str
    since: float
    dialect: str
    signing: str
    signing_required: bool
    cipher: str
    encryption: str
    smb_credits: int
    requests: int
    pending_requests: int
    sizes: Sizes
    sessions: list[str]
    rdma: RdmaAnswer
    rdma_transforms: list[str]
    rdma_protection: str
    rdma_bytes_encrypted: int
    rdma_bytes_signed: int
    rdma_read_bytes: int
    rdma_write_bytes: int
    inline_bytes_received: int
    inline_bytes_sent: int
    send_credits: int | None
    receive_credits: int | None
    registrations: int
    allocations: int
    retransmissions: int
    errors: int
    provider: Mapping[str, int]
    smb_direct: Mapping[str, int] | UnsetType = UNSET
    compression: Compression | UnsetType = UNSET
    """Unset if the client has not asked for it."""
    process: int | UnsetType = UNSET
    """Number of the process that has it, where a server has several."""
    rates: Rates | UnsetType = UNSET


class RecycleRecord(Record):
    """The recycle folder of a share that empties it by age or size."""

    files: int
    """When the server looked at it last."""
    bytes: int
    removed_files: int
    """Since the server's start."""
    removed_bytes: int


class StorageRecord(Record):
    """The storage of a share that may answer late, as it is now."""

    requests: int
    """How many wait for it, or for those before them."""
    seconds: float
    """For how long it has not answered. 0: it was asked nothing."""


class ShareRecord(Record):
    """A share."""

    share: str
    path: str
    type: str
    read_only: bool
    encrypted: bool
    continuous_availability: bool
    connects: int
    open_count: int
    bytes_read: int
    bytes_written: int
    recycle: RecycleRecord | UnsetType = UNSET
    storage: StorageRecord | UnsetType = UNSET
    """Unset if requests do not wait for each other there."""
    links: int | UnsetType = UNSET
    """Of the root of a namespace (DFS): how many links it has."""
    process: int | UnsetType = UNSET
    """Number of the process that has it, where a server has several."""
    rates: Rates | UnsetType = UNSET


class UserRecord(Record):
    """A user. All guests and anonymous users count as one."""

    user: str
    guests: bool
    connections: int
    sessions: int
    open_count: int
    locks: int
    watchers: int
    bytes_read: int
    bytes_written: int
    requests: int
    rates: Rates | UnsetType = UNSET


class InterfaceRecord(Record):
    """An address of this machine, as clients are told of it. [MS-SMB2 2.2.32.5]"""

    index: int
    interface: str
    address: str
    speed: int
    link: bool
    rdma: bool
    tcp: bool
    rss: bool
    queues: int
    loopback: bool
    told: bool
    """Whether other machines find the address in FSCTL_QUERY_NETWORK_INTERFACE_INFO."""


class LockRecord(Record):
    """A byte-range lock that is held or waited for."""

    open: str
    session: str
    user: str
    share: str
    path: str
    offset: int
    length: int
    exclusive: bool
    waiting: bool


class ServiceRecord(Record):
    """A service of the cluster, as this node knows it."""

    name: str
    owned: bool
    node: str | None
    addresses: list[str]
    shares: list[str]
    restored: int
    takeovers: int
    losses: int
    clients: int
    opens: int


class EtcdMember(Record):
    """A member of etcd. ``error`` is empty if it answered."""

    endpoint: str
    error: str
    version: str
    revision: int
    size: int
    in_use: int
    quota: int
    has_leader: bool
    alarms: list[str]
    seconds: float
    limit: int


class EtcdProblem(Record):
    """What is wrong with etcd."""

    is_error: bool
    text: str


class EtcdRecord(Record):
    """The state of etcd. ``latency`` is None if it did not answer."""

    latency: float | None
    members: list[EtcdMember]
    problems: list[EtcdProblem]


class ClusterRecord(Record):
    """The state of a node of a cluster."""

    name: str
    node: str
    member: bool
    lease_left: float
    nodes: list[str]
    services: list[ServiceRecord]
    opens: int
    max_opens: int | None
    etcd: EtcdRecord


class ProcessRecord(Record):
    """User and privileges of the server."""

    pid: int
    user: str
    acts_as_users: bool
    capabilities: list[str]
    no_new_privs: bool
    sandbox: bool
    dumpable: bool
    core_limit: int


class PartRecord(Record):
    """One of several processes of the server."""

    number: int
    address: str
    pid: int = 0
    sessions: int = 0
    channels: int = 0
    error: str = ""
    """Why it does not answer."""


class FlowRecord(Record):
    """A logical flow of storage quality of service."""

    flow: str
    policy: str
    """Its name, or its id if it is not known. Empty: the limits are the client's."""
    initiator: str
    node: str
    opens: int
    iops: float
    """Normalized operations per second lately."""
    bandwidth: float
    """Bytes per second lately."""
    maximum_iops: int
    maximum_bandwidth: int
    """KiB per second."""
    operations: int
    delayed: int
    """Operations that had to wait."""


class Report(Record, kw_only=True):
    """The whole report."""

    schema: int = SCHEMA
    pid: int
    server: ServerRecord
    sessions: list[SessionRecord]
    channels: list[ChannelRecord]
    shares: list[ShareRecord]
    users: list[UserRecord]
    interfaces: list[InterfaceRecord]
    locks: list[LockRecord]
    away: list[AwayRecord]
    flows: list[FlowRecord] | UnsetType = UNSET
    """Unset where there are none."""
    down: dict[str, str] | UnsetType = UNSET
    process: ProcessRecord | UnsetType = UNSET
    processes: list[PartRecord] | UnsetType = UNSET
    """Unset where there is one."""
    cluster: ClusterRecord | UnsetType = UNSET


Moving = ServerRecord | SessionRecord | ChannelRecord | ShareRecord | UserRecord
"""What has rates."""
