"""Settings of a server. ``config`` fills them in from the command line and a file."""

from __future__ import annotations

from msgspec import field

from smb3server.auth.groups import Groups
from smb3server.auth.ntlm_messages import Home
from smb3server.auth.password_rules import MIN_LENGTH
from smb3server.backends.base import User
from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.net.host_lists import EVERYBODY, HostLists
from smb3server.settings.limits import Limits
from smb3server.settings.storage_policies import StoragePolicy
from smb3server.wire.compression import CompressionAlgorithm
from smb3server.wire.negotiate import Dialect
from smb3server.wire.rdma_transform import RdmaTransformId


class Settings(Limits, kw_only=True):
    """The settings of one server. Sizes are in bytes, times in seconds."""

    server_name: str = "SMB3SERVER"
    """NetBIOS name: at most 15 characters, upper case."""
    comment: str = "smb3server"
    min_dialect: int = Dialect.SMB_2_1
    """Lowest dialect over TCP."""
    rdma_min_dialect: int = Dialect.SMB_3_0
    """Lowest dialect over SMB Direct, which requires 3.0 (MS-SMB2 2.1)."""
    max_dialect: int = Dialect.SMB_3_1_1
    require_signing: bool = False
    """Whether all messages of a session must be signed. Guests and anonymous users have no key and are refused."""
    require_encryption: bool = False
    """EncryptData of the server: every session is encrypted, and clients that do not support encryption are refused."""
    ciphers: tuple[int, ...] = (Cipher.AES_128_GCM, Cipher.AES_256_GCM, Cipher.AES_128_CCM, Cipher.AES_256_CCM)
    """Ciphers that are allowed. The client's order decides among them."""
    signing_algorithms: tuple[int, ...] = (
        SigningAlgorithm.AES_GMAC,
        SigningAlgorithm.AES_CMAC,
        SigningAlgorithm.HMAC_SHA256,
    )
    rdma_transforms: tuple[int, ...] = (RdmaTransformId.ENCRYPTION, RdmaTransformId.SIGNING)
    """How data of encrypted and signed requests may be protected when it moves by RDMA. Empty: encrypted data moves in
    messages only."""
    compression: tuple[int, ...] = (
        CompressionAlgorithm.LZ4,
        CompressionAlgorithm.LZ77,
        CompressionAlgorithm.LZ77_HUFFMAN,
        CompressionAlgorithm.LZNT1,
        CompressionAlgorithm.PATTERN_V1,
    )
    """Algorithms that messages may be compressed with. The client's order decides among them. Empty: no message is."""
    allow_guest: bool = False
    """Whether unknown users become guests. A known user with a wrong password never does."""
    allow_anonymous: bool = False
    """Whether anonymous users may log on."""
    guests_see_accounts: bool = False
    """Whether guests and anonymous users may look up names of accounts."""
    storage_policies: tuple[StoragePolicy, ...] = ()
    groups: Groups = field(default_factory=Groups)
    """Groups of users."""
    share_folders: tuple[str, ...] = ()
    """Directories below which administrators may add shares from afar. Empty: below those of the configured shares."""
    admins: frozenset[str] = frozenset()
    """Users who may change the server from afar (``Groups.expand``)."""
    security_operators: frozenset[str] | None = None
    """Users with SeSecurityPrivilege. None means ``admins``."""
    backup_operators: frozenset[str] = frozenset()
    """Users with SeBackupPrivilege and SeRestorePrivilege."""
    hosts: HostLists = EVERYBODY
    """Addresses that may connect."""
    home: Home | None = None
    """The domain that the server is a member of, with a secure channel to its controllers. None means none."""
    keytab: str = ""
    """File with Kerberos keys. Empty means NTLM only."""
    ntlm: bool = True
    """Whether passwords are accepted, not only tickets."""
    trusted_realms: tuple[str, ...] = ()
    """Kerberos realms whose principals have the account of the same name. Empty means the realms of the keytab's own
    services."""
    unknown_principals: User | None = None
    """POSIX credentials of principals of trusted realms that have no account. None means that they are refused."""
    watchdog: float = 0.0
    """Seconds for which a command may block all others before it is logged. 0 means that blocked time is not
    measured."""
    test_fsctls: bool = False
    """Whether smbtorture's FSCTLs are answered, which break the server on purpose."""
    multichannel: bool = True
    rss: bool = False
    """Whether interfaces with several receive queues are flagged RSS_CAPABLE. Clients then open several connections to
    each interface. A server with one event loop gains little by that."""
    leases: bool = True
    directory_leases: bool = True
    rdma_read_size: int = 8 << 20
    """Maximum bytes of a READ by RDMA, at most ``max_io_size``. 0 means that it may not exceed what fits one
    message."""
    iwarp_crc: bool = False
    """Whether iWARP clients are asked for the CRC of MPA."""
    max_message_size: int = (8 << 20) + (1 << 16)
    """Maximum size of an authenticated client's message. A larger one ends the connection."""
    min_password_length: int = MIN_LENGTH
    """Characters that a password set by a client, or by ``smb3server user``, must have."""

    # Limits that are no keys of the configuration.

    max_message_before_authentication: int = (1 << 16) + 4096
    """Maximum size of other clients' messages. Security tokens with Kerberos tickets may take 64 KiB."""
    credits_before_authentication: int = 256
    """Credits per connection without an authenticated session."""
    max_async_requests: int = 512
    """Fewer requests of one connection than this may wait for what others do. CHANGE_NOTIFY, blocking locks and reads
    of pipes may wait forever. Windows servers have the same number. [MS-SMB2 3.3.4.2]"""
    interim_delay: float = 0.2
    """Seconds after which an interim response reports that a request is pending."""
    max_logon_delay: float = 5.0
    """Maximum seconds between two delayed logons to an account, or from an address. 0 means that logons are not
    delayed."""
    negotiate_timeout: float = 30.0
    """Seconds for a new connection to send its first byte, and from then on to send a valid first message."""
    max_sessions_in_progress: int = 8
    """Sessions in authentication, per connection."""
    max_sessions: int = 1024
    """Sessions per connection."""
    max_channels: int = 32
    """Channels per session: the limit of Windows."""
    max_trees: int = 1024
    """Tree connects per session."""
    max_locks: int = 4096
    """Locks per open. Beyond this limit the status is INSUFFICIENT_RESOURCES."""
    max_watchers: int = 2048
    """Directories with CHANGE_NOTIFY, per session. Beyond this limit the status is INSUFFICIENT_RESOURCES. Each channel
    of a session may have ``max_async_requests`` of them waiting."""
    max_locks_per_user: int = 65536
    max_watchers_per_user: int = 2048
    max_lent_per_user: int = 256 << 20
    """Bytes of large buffers for READ that a user's requests and unsent answers may use. Further requests wait."""
