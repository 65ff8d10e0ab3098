"""What can be set about a server; ``config`` fills it in from the command line and a file."""

from __future__ import annotations

from dataclasses import dataclass

from smb3server.backends.base import User
from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.net.host_lists import EVERYBODY, HostLists
from smb3server.wire.negotiate import Dialect


@dataclass(slots=True)
class Settings:
    """Sizes in bytes, times in seconds."""

    server_name: str = "SMB3SERVER"
    """NetBIOS name: at most 15 characters, upper case."""
    comment: str = "smb3server"
    min_dialect: int = Dialect.SMB_2_1
    """Over TCP."""
    rdma_min_dialect: int = Dialect.SMB_3_0
    """Over SMB Direct, which is for 3.0 and later (MS-SMB2 2.1)."""
    max_dialect: int = Dialect.SMB_3_1_1
    require_signing: bool = False
    require_encryption: bool = False
    """EncryptData of the server: every session is encrypted, clients that cannot are refused."""
    ciphers: tuple[int, ...] = (Cipher.AES_128_GCM, Cipher.AES_256_GCM, Cipher.AES_128_CCM, Cipher.AES_256_CCM)
    """Those allowed; among them the client's order decides."""
    signing_algorithms: tuple[int, ...] = (
        SigningAlgorithm.AES_GMAC,
        SigningAlgorithm.AES_CMAC,
        SigningAlgorithm.HMAC_SHA256,
    )
    allow_guest: bool = False
    """Unknown users become guests; a wrong password never does."""
    allow_anonymous: bool = False
    guests_see_accounts: bool = False
    """Guests and anonymous users may ask for the names of accounts."""
    hosts: HostLists = EVERYBODY
    """Who may connect."""
    keytab: str = ""
    """Kerberos keytab; empty: NTLM only."""
    ntlm: bool = True
    """Passwords are taken, not only tickets."""
    trusted_realms: tuple[str, ...] = ()
    """Kerberos realms in which a name means the account of that name; empty: those of the keytab's own services."""
    unknown_principals: User | None = None
    """POSIX credentials of principals of trusted realms that have no account; None: they are refused."""
    watchdog: float = 0.0
    """Seconds that a command may hold up everybody else before it is logged; 0: nobody looks."""
    test_fsctls: bool = False
    """Answer smbtorture's FSCTLs, which break the server on purpose."""
    multichannel: bool = True
    rss: bool = False
    """Flag interfaces with several receive queues RSS_CAPABLE: clients open several connections to each then, which a
    server with one event loop gains little by."""
    leases: bool = True
    directory_leases: bool = True
    max_io_size: int = 8 << 20
    """MaxTransactSize, MaxReadSize, MaxWriteSize."""
    rdma_read_size: int = 8 << 20
    """Bytes that a READ by RDMA may ask for, at most ``max_io_size``; 0: no more than fits a message to the client."""
    iwarp_crc: bool = False
    """Ask iWARP clients for the CRC of MPA."""
    max_message_size: int = (8 << 20) + (1 << 16)
    """Of an authenticated client's; larger ones end the connection."""
    max_message_before_authentication: int = (1 << 16) + 4096
    """Security tokens with Kerberos tickets may take 64 KiB."""
    max_credits: int = 8192
    credits_before_authentication: int = 256
    max_async_requests: int = 1024
    """Pending at once on a connection; CHANGE_NOTIFY and blocking locks may pend for ever."""
    interim_delay: float = 0.2
    """After which a pending request tells its client so."""
    failed_logon_delay: float = 0.25
    failed_logons_per_account: int = 10
    """Failed logons to an account before its logons are slowed."""
    failed_logons_per_address: int = 30
    """The same from an IPv4 address or IPv6 /64."""
    max_logon_delay: float = 5.0
    """Between two logons to an account, or from an address, that are slowed; 0: none is."""
    lockout_failures: int = 0
    """Failed logons in a row that lock an account out; 0: none is."""
    lockout_time: float = 900.0
    authentication_timeout: float = 45.0
    """For a connection to get its first valid session, and for each logon."""
    negotiate_timeout: float = 30.0
    """For a connection to send its first byte, and from then on to negotiate."""
    max_sessions_in_progress: int = 8
    """Per connection."""
    max_sessions: int = 1024
    """Per connection."""
    max_channels: int = 32
    """Per session, as Windows has it."""
    max_trees: int = 1024
    """Per session."""
    max_opens: int = 16384
    """Per session; one more is INSUFFICIENT_RESOURCES."""
    max_locks: int = 4096
    """Per open; INSUFFICIENT_RESOURCES beyond."""
    max_watchers: int = 1024
    """Per session: directories with CHANGE_NOTIFY; INSUFFICIENT_RESOURCES beyond."""
    max_connections: int = 4096
    """With a user logged on."""
    max_unauthenticated: int = 4096
    """Connections without, of all addresses; beyond it the address that has most gives way."""
    max_user_share: float = 0.5
    """Of the connections and opens that no other user has, how much one user may have."""
    max_sessions_per_user: int = 2048
    max_locks_per_user: int = 65536
    max_watchers_per_user: int = 2048
    max_lent_per_user: int = 256 << 20
    """Bytes of large buffers for READ that a user's requests and unsent answers may have; further ones wait."""
    max_reserved_per_user: int = 256 << 20
    """Bytes that clients may have reserved behind the ends of files they have open."""
    max_unauthenticated_per_address: int = 512
    """The same from one IPv4 address or IPv6 /64, once they have said something."""
    idle_session_timeout: float = 900.0
    """For a session without a tree connect, and a connection without a session, to be used; 0: for ever."""
