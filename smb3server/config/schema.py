"""The configuration file: its sections and keys, declared once.

From these declarations come the parser (``sections``), the defaults, the tables of docs/configuration.md, the commented
example and the JSON schema (``documents``). The names of fields are the keys; descriptions are Markdown. A section
holds values as they are written in the file. ``build`` makes the server's own objects from them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from smb3server.auth.password_rules import MAX_LENGTH
from smb3server.dfs.namespace import DEFAULT_TTL as LINK_TTL
from smb3server.settings.cluster import DEFAULT_FENCE_TIMEOUT, DEFAULT_NAME, DEFAULT_STORAGE_TIMEOUT, DEFAULT_TTL
from smb3server.settings.declaring import Effect, NotNegative, Positive, Seconds, Section, about
from smb3server.settings.discovery import DiscoveryConfig
from smb3server.settings.domain import FIRST_ID, LAST_ID, IdMapping
from smb3server.settings.limits import LARGEST_IO, Limits
from smb3server.settings.observing import MetricsSettings
from smb3server.settings.server import Settings
from smb3server.settings.share import ConnectionRules, ShareRules
from smb3server.settings.web import WebConfig

_SETTINGS = Settings()
_WEB = WebConfig()
_DISCOVERY = DiscoveryConfig()
_METRICS = MetricsSettings()
_AS_ALL = "as `log_level`"
MAX_PROCESSES = 64

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
AuditEvent = Literal["connect", "open", "create", "write", "delete", "rename", "permission", "denied", "sacl"]
DialectName = Literal["2.0.2", "2.1", "3.0", "3.0.2", "3.1.1"]
CipherName = Literal["AES-128-GCM", "AES-256-GCM", "AES-128-CCM", "AES-256-CCM"]
SigningName = Literal["AES-GMAC", "AES-CMAC", "HMAC-SHA256"]
CompressionName = Literal["LZ4", "LZ77", "LZ77+Huffman", "LZNT1", "Pattern_V1"]
TransformName = Literal["encryption", "signing"]
PasswordLength = Annotated[int, Meta(ge=1, le=MAX_LENGTH)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Ttl = Annotated[float, Meta(ge=2, le=60)]
Stall = Annotated[float, Meta(ge=0, le=600)]
Wait = Annotated[float, Meta(ge=1, le=600)]
Processes = Annotated[int, Meta(ge=1, le=MAX_PROCESSES)]
ReadSize = Annotated[int, Meta(ge=0, le=LARGEST_IO)]
Mode = Annotated[str, Meta(pattern="^0?[0-7]{3}$", title='permissions in octal digits, as "0640"')]
NetbiosName = Annotated[
    str, Meta(pattern=r'^[^\x00-\x20"*+,/:;<=>?\[\\\]|]{1,15}$', title="a NetBIOS name: 1 to 15 characters, no spaces")
]
ClusterName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_-]{1,63}$", title="a name of at most 63 letters, digits, - and _")
]
RealmName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)+$",
        max_length=255,
        title='a name of a domain in DNS, as "contoso.com"',
    ),
]
HostName = Annotated[
    str,
    Meta(
        pattern=r"^(?=.*[A-Za-z])[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$",
        max_length=255,
        title="a host name; an address has no service principal that would prove whose it is",
    ),
]
SiteName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,63}$", title="a name of at most 63 letters, digits, - and _")]
Rotation = Annotated[
    str, Meta(pattern="^(never|[1-9][0-9]{0,8}[smhd])$", title='a duration, as "30d" or "12h", or "never"')
]
NtHash = Annotated[str, Meta(pattern="^[0-9a-fA-F]{32}$", title="an NT hash of 32 hexadecimal digits")]
UnknownPrincipals = Annotated[str, Meta(pattern="^(refuse|user:.+)$", title='"refuse" or "user:NAME"')]


class Server(Section):
    """The server itself, its network and its protection."""

    name: Annotated[
        NetbiosName | None,
        about(
            "NetBIOS name, at most 15 characters",
            Effect.RESTART,
            field="server_name",
            example="FILES",
            unset="the host's name",
        ),
    ] = None
    comment: Annotated[str, about("shown in lists of servers", Effect.AT_ONCE, example="files of the department")] = (
        _SETTINGS.comment
    )
    listen: Annotated[
        list[str], about("list of addresses", Effect.RESTART, example=["0.0.0.0", "::"], unset="all addresses")
    ] = field(default_factory=list)
    port: Annotated[
        Port | None, about("TCP port; 0: any free one", Effect.RESTART, example=445, unset="445, else 1445")
    ] = None
    processes: Annotated[
        Processes,
        about("how many processes serve the shares ([many-cores.md](many-cores.md#one-name-several-processes))"),
    ] = 1
    process_addresses: Annotated[
        list[str],
        about(
            "list of addresses, one for each process",
            example=["192.0.2.10", "192.0.2.11"],
            unset="`listen`, else the first addresses of this machine",
        ),
    ] = field(default_factory=list)
    rdma: Annotated[str, about("as `--rdma`", Effect.RESTART, example="iwarp,roce")] = "off"
    rdma_port: Annotated[Port | None, about("SMB Direct port", Effect.RESTART, example=5445, unset="5445")] = None
    rdma_read_size: Annotated[
        ReadSize,
        about(
            "bytes that clients may read at once over SMB Direct, at most `max_io_size`; `0`: no more than fits a "
            "message to the client, which is for Linux clients that mount the same server with and without `seal` "
            "([smbdirect.md](smbdirect.md#how-long-a-read-may-be))",
            Effect.NEW_CONNECTIONS,
        ),
    ] = _SETTINGS.rdma_read_size
    iwarp_crc: Annotated[
        bool,
        about(
            "ask clients of software iWARP for MPA's checksums ([smbdirect.md](smbdirect.md#checksums-of-iwarp))",
            Effect.RESTART,
        ),
    ] = _SETTINGS.iwarp_crc
    state: Annotated[
        str | None,
        about(
            "as `--state`; outside of every share",
            Effect.RESTART,
            example="/var/lib/smb3server",
            unset="none",
            is_path=True,
        ),
    ] = None
    log_level: Annotated[LogLevel, about("as `--log-level`; levels of components are in `[log]`", Effect.AT_ONCE)] = (
        "info"
    )
    log_format: Annotated[
        LogFormat,
        about(
            "`json` writes one object per line, for programs ([logs.md](logs.md#json))", Effect.RESTART, example="json"
        ),
    ] = "text"
    log_file: Annotated[
        str | None,
        about(
            "file for the log; a reload or SIGHUP opens it again, after logrotate",
            Effect.RESTART,
            example="/var/log/smb3server/smb3server.log",
            unset="stderr",
            is_path=True,
        ),
    ] = None
    audit_file: Annotated[
        str | None,
        about(
            "file for the audit of all shares, in lines of JSON ([logs.md](logs.md#audit))",
            Effect.RESTART,
            example="/var/log/smb3server/audit.log",
            unset="the log",
            is_path=True,
        ),
    ] = None
    run_as: Annotated[
        str | None,
        about(
            "user of the host that the server becomes, with the few capabilities it needs "
            "([security.md](security.md)); only if root starts it",
            Effect.RESTART,
            example="www-data",
            unset="the user who started it",
        ),
    ] = None
    drop_privileges: Annotated[
        str | None,
        about(
            "`owner` (of the shares' folders) or a user of the host: everybody acts as this user, and so does the "
            "server once its ports are open; it can do no more then ([security.md](security.md#not-as-root)). Only if "
            "root starts it; excludes `run_as`",
            Effect.RESTART,
            example="",
            unset="the server keeps what it needs to act as users",
        ),
    ] = None
    allow_root: Annotated[bool, about("`unix_user` and `force_user` may be root", Effect.AT_ONCE)] = False
    sandbox: Annotated[
        bool,
        about(
            "refuse system calls that a file server never makes ([security.md](security.md))",
            Effect.RESTART,
            example=True,
        ),
    ] = False
    xattrs: Annotated[
        Literal["auto", "trusted", "user"],
        about(
            "namespace of extended attributes for metadata: `trusted` (needs CAP_SYS_ADMIN), `user` (users who may "
            "write a file may change them), or `auto`: `trusted` where possible. Metadata in the other namespace is "
            "not seen",
            Effect.RESTART,
            example="trusted",
        ),
    ] = "auto"
    min_password_length: Annotated[
        PasswordLength,
        about("characters that a password needs which a client or `smb3server user` sets", Effect.AT_ONCE, example=10),
    ] = _SETTINGS.min_password_length
    share_folders: Annotated[
        list[str],
        about(
            "list of folders below which administrators may add shares over the network ([operating.md](operating.md))",
            Effect.AT_ONCE,
            example=["/srv"],
            unset="the directories of the shares of this file",
            is_path=True,
        ),
    ] = field(default_factory=list)
    users_file: Annotated[
        str | None,
        about(
            "file with the accounts that `smb3server user` and clients change, beside the `[[user]]` sections "
            "([users.md](users.md))",
            Effect.AT_ONCE,
            example="/var/lib/smb3server/users",
            unset="`users` in `state`; without a state directory `/etc/smb3server/users` (root) or "
            "`~/.config/smb3server/users`",
            is_path=True,
        ),
    ] = None
    guest: Annotated[
        bool,
        about(
            "let unknown users in as guests; they may use the shares with `guest = true` and without `users`, and see "
            "the names of all that are not hidden",
            Effect.AT_ONCE,
            field="allow_guest",
        ),
    ] = _SETTINGS.allow_guest
    anonymous: Annotated[
        bool,
        about(
            "let sessions without a user in; they may use IPC$ and the shares with `guest = true` and without `users`",
            Effect.AT_ONCE,
            field="allow_anonymous",
        ),
    ] = _SETTINGS.allow_anonymous
    require_signing: Annotated[
        bool,
        about(
            "every message of a session is signed; guests and anonymous users have no secret key and are refused",
            Effect.NEW_CONNECTIONS,
        ),
    ] = _SETTINGS.require_signing
    require_encryption: Annotated[
        bool, about("every session is encrypted; clients that cannot are refused", Effect.NEW_CONNECTIONS)
    ] = _SETTINGS.require_encryption
    keytab: Annotated[
        str | None,
        about(
            "Kerberos keytab with a key for `cifs/HOST@REALM`; needs the part `kerberos` "
            "([install.md](install.md#optional-parts)); without a keytab NTLM only",
            Effect.NEW_LOGONS,
            example="/etc/krb5.keytab",
            unset="none",
            is_path=True,
        ),
    ] = None
    trusted_realms: Annotated[
        list[str],
        about(
            "list of Kerberos realms whose principals are the accounts of the same name ([security.md](security.md))",
            Effect.NEW_LOGONS,
            example=["EXAMPLE.COM"],
            unset="those of the keytab's `cifs/` keys",
        ),
    ] = field(default_factory=list)
    unknown_principals: Annotated[
        UnknownPrincipals,
        about(
            "what to do with principals of trusted realms that have no account: `refuse`, or `user:NAME` to let them "
            "in and act as this user of the host, which may not be root; needs `keytab`",
            Effect.NEW_LOGONS,
        ),
    ] = "refuse"
    ntlm: Annotated[
        bool, about("accept passwords; `false`: Kerberos only, without guests and anonymous users", Effect.NEW_LOGONS)
    ] = _SETTINGS.ntlm
    guests_see_accounts: Annotated[
        bool, about("guests and anonymous users may ask for names of accounts and of the host's users", Effect.AT_ONCE)
    ] = _SETTINGS.guests_see_accounts
    hosts_allow: Annotated[
        list[str] | None,
        about(
            "list of addresses and networks that may connect, also to the Witness service",
            Effect.AT_ONCE,
            field="hosts",
            example=["192.0.2.0/24", "2001:db8::/32"],
            unset="everybody",
        ),
    ] = None
    hosts_deny: Annotated[
        list[str],
        about(
            "list of addresses and networks that may not; wins over `hosts_allow`",
            Effect.AT_ONCE,
            field="hosts",
            example=["192.0.2.66"],
            unset="none",
        ),
    ] = field(default_factory=list)
    admins: Annotated[
        list[str],
        about(
            "list of users who may change the server over the network: shares, sessions, passwords of others",
            Effect.AT_ONCE,
            example=["alice", "@staff"],
            unset="nobody",
        ),
    ] = field(default_factory=list)
    security_operators: Annotated[
        list[str] | None,
        about(
            "list of users who may read and change SACLs, which say what Windows audits "
            "([access.md](access.md#privileges))",
            Effect.AT_ONCE,
            example=["auditor"],
            unset="`admins`",
        ),
    ] = None
    backup_operators: Annotated[
        list[str],
        about(
            "list of users who may read and write every file of every share when they back up or restore it, whatever "
            "its permissions say ([access.md](access.md#privileges))",
            Effect.AT_ONCE,
            example=["backup"],
            unset="nobody",
        ),
    ] = field(default_factory=list)
    min_dialect: Annotated[
        DialectName, about("lowest dialect over TCP: `2.0.2`, `2.1`, `3.0`, `3.0.2`, `3.1.1`", Effect.NEW_CONNECTIONS)
    ] = "2.1"
    rdma_min_dialect: Annotated[DialectName, about("lowest dialect over SMB Direct", Effect.NEW_CONNECTIONS)] = "3.0"
    max_dialect: Annotated[DialectName, about("highest dialect", Effect.NEW_CONNECTIONS)] = "3.1.1"
    ciphers: Annotated[
        list[CipherName],
        about(
            "allowed ciphers, of `AES-128-GCM`, `AES-256-GCM`, `AES-128-CCM`, `AES-256-CCM`; the client's order of "
            "preference decides among them",
            Effect.NEW_CONNECTIONS,
            example=["AES-128-GCM", "AES-256-GCM"],
            unset="all four",
        ),
    ] = field(default_factory=lambda: ["AES-128-GCM", "AES-256-GCM", "AES-128-CCM", "AES-256-CCM"])
    signing_algorithms: Annotated[
        list[SigningName],
        about(
            "allowed algorithms, of `AES-GMAC`, `AES-CMAC`, `HMAC-SHA256`",
            Effect.NEW_CONNECTIONS,
            example=["AES-GMAC", "AES-CMAC"],
            unset="all three",
        ),
    ] = field(default_factory=lambda: ["AES-GMAC", "AES-CMAC", "HMAC-SHA256"])
    rdma_transforms: Annotated[
        list[TransformName],
        about(
            "how the data of encrypted and signed requests may be protected on its way by RDMA, of `encryption`, "
            "`signing`; `[]`: not at all, and encrypted data goes in messages only ([smbdirect.md](smbdirect.md))",
            Effect.NEW_CONNECTIONS,
            unset="both",
        ),
    ] = field(default_factory=lambda: ["encryption", "signing"])
    compression: Annotated[
        list[CompressionName],
        about(
            "algorithms that messages may be compressed with where the client asks for it, of `LZ4`, `LZ77`, "
            "`LZ77+Huffman`, `LZNT1`, `Pattern_V1`; the client's order of preference decides among them; `[]`: no "
            "message is compressed ([compression.md](compression.md))",
            Effect.NEW_CONNECTIONS,
            example=["LZ77", "Pattern_V1"],
            unset="all five",
        ),
    ] = field(default_factory=lambda: ["LZ4", "LZ77", "LZ77+Huffman", "LZNT1", "Pattern_V1"])
    multichannel: Annotated[bool, about("a session may use several connections", Effect.NEW_CONNECTIONS)] = (
        _SETTINGS.multichannel
    )
    rss: Annotated[
        bool,
        about(
            "report to clients which interfaces have several receive queues: they then open several connections to "
            "each of these",
            Effect.AT_ONCE,
        ),
    ] = _SETTINGS.rss
    leases: Annotated[bool, about("clients may cache files", Effect.NEW_CONNECTIONS)] = _SETTINGS.leases
    directory_leases: Annotated[bool, about("clients may cache directories", Effect.NEW_CONNECTIONS)] = (
        _SETTINGS.directory_leases
    )
    watchdog: Annotated[
        Seconds,
        about(
            "seconds that one request may hold up all others before the log and `smb3server status` name it; 0: off. "
            "0.05 is a good value to look for causes",
            Effect.RESTART,
            example=0.05,
        ),
    ] = _SETTINGS.watchdog
    test_fsctls: Annotated[bool, about("answer smbtorture's own FSCTLs; for tests only", Effect.AT_ONCE)] = (
        _SETTINGS.test_fsctls
    )


AllowedUsers = Annotated[
    list[str] | None,
    about(
        "list of allowed users and groups ([groups](#groups)); guests are on no list",
        Effect.AT_ONCE,
        example=["@staff", "bob", "carol@EXAMPLE.COM"],
        unset="every user",
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    about(
        "list of addresses and networks that may use the share, among those that may connect",
        Effect.AT_ONCE,
        field="hosts",
        example=["192.0.2.0/25"],
        unset="everybody",
    ),
]
DeniedHosts = Annotated[
    list[str],
    about(
        "list of addresses and networks that may not; wins over `hosts_allow`",
        Effect.AT_ONCE,
        field="hosts",
        unset="none",
    ),
]


class ShareOptions(ShareRules, kw_only=True):
    """What can be set for a share, besides its name and path."""

    users: AllowedUsers = None
    read_list: Annotated[
        list[str], about("list of users who may only read", Effect.NEW_OPENS, example=["bob"], unset="none")
    ] = field(default_factory=list)
    write_list: Annotated[
        list[str],
        about("with `read_only = true`: list of users who may write all the same", Effect.NEW_OPENS, unset="none"),
    ] = field(default_factory=list)
    hosts_allow: AllowedHosts = None
    hosts_deny: DeniedHosts = field(default_factory=list)
    hide_files: Annotated[
        list[str],
        about(
            "list of patterns whose files are shown as hidden", Effect.AT_ONCE, example=["*.tmp", "~$*"], unset="none"
        ),
    ] = field(default_factory=list)
    veto_files: Annotated[
        list[str],
        about(
            "list of patterns whose files and folders exist for no client: they are not listed, not opened and not "
            "created. A folder that has such files is not empty, and is not deleted",
            Effect.NEW_OPENS,
            example=["lost+found", "*.exe"],
            unset="none",
        ),
    ] = field(default_factory=list)
    create_mask: Annotated[
        Mode | None,
        about(
            "permissions that new files may have, of 0666, whatever the umask of the server is",
            Effect.NEW_OPENS,
            example="0664",
            unset="the server's umask",
        ),
    ] = None
    directory_mask: Annotated[
        Mode | None,
        about(
            "permissions that new folders may have, of 0777",
            Effect.NEW_OPENS,
            example="0775",
            unset="the server's umask",
        ),
    ] = None
    force_create_mode: Annotated[
        Mode, about("permissions that new files have in any case", Effect.NEW_OPENS, example="0640")
    ] = "0000"
    force_directory_mode: Annotated[
        Mode, about("permissions that new folders have in any case", Effect.NEW_OPENS, example="0750")
    ] = "0000"
    recycle_exclude: Annotated[
        list[str],
        about(
            "list of patterns whose files are deleted at once", Effect.AT_ONCE, example=["*.tmp", "~$*"], unset="none"
        ),
    ] = field(default_factory=list)
    service: Annotated[
        str | None,
        about("the cluster's service that the share belongs to", Effect.REPLACED, example="files", unset="none"),
    ] = None
    audit: Annotated[
        bool,
        about(
            "record what users do with the share and its files ([logs.md](logs.md#audit))", Effect.AT_ONCE, example=True
        ),
    ] = False
    audit_events: Annotated[
        list[AuditEvent],
        about(
            "with `audit = true`: list of what is recorded, of `connect`, `open`, `create`, `write`, `delete`, "
            "`rename`, `permission`, `denied` and `sacl`",
            Effect.AT_ONCE,
            field="audit",
            example=["create", "delete", "rename", "denied"],
            unset="everything",
        ),
    ] = field(default_factory=list)
    force_user: Annotated[
        str | None,
        about(
            "every client acts as this user of the host; needs a server that runs as root ([security.md](security.md))",
            Effect.NEW_OPENS,
            example="www-data",
            unset="none",
        ),
    ] = None


class Share(ShareOptions):
    """A folder that clients can connect to."""

    name: Annotated[str, about("at most 80 characters", Effect.AT_ONCE, example="data")]
    path: Annotated[str, about("a directory", Effect.REPLACED, example="/srv/data", is_path=True)]
    require_mount: Annotated[
        bool,
        about(
            "the share is down unless a file system is mounted on `path` itself: an empty mount point is never served",
            Effect.REPLACED,
        ),
    ] = False
    process: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_PROCESSES)],
        about(
            "number of the process that serves the share, from 1, where the server has several `processes`; 0: any",
            Effect.RESTART,
        ),
    ] = 0


class Homes(ShareOptions):
    """A share for each user, with the user's name, open to this user alone. It is made when the user connects to it."""

    path: Annotated[
        str,
        about(
            "a directory, with `{user}` for the name of the user", Effect.RESTART, example="/home/{user}", is_path=True
        ),
    ]


class Link(Section):
    """A folder of a namespace that leads to a share, here or on another server."""

    path: Annotated[
        str,
        about(
            "the folder, below the root; folders above it are there by themselves", Effect.AT_ONCE, example="projects"
        ),
    ]
    targets: Annotated[
        list[str],
        about(
            "list of shares or folders of shares with the same files ([dfs.md](dfs.md#targets)): `//SERVER/SHARE`, or "
            "`SHARE` for a share of this server; may go on with `; priority=`, `; rank=` and `; site=`",
            Effect.AT_ONCE,
            example=["//files1/projects", "//files2/projects; priority=last"],
        ),
    ]
    comment: Annotated[str, about("for administrators", Effect.AT_ONCE)] = ""
    ttl: Annotated[
        Positive | None,
        about(
            "seconds that clients remember where it leads", Effect.AT_ONCE, example=300, unset="that of the namespace"
        ),
    ] = None
    failback: Annotated[
        bool | None,
        about(
            "clients go back to a better target when it is there again",
            Effect.AT_ONCE,
            example=True,
            unset="that of the namespace",
        ),
    ] = None


class Namespace(ConnectionRules, kw_only=True):
    """One name for several servers: a share that has nothing but links to other shares ([dfs.md](dfs.md))."""

    name: Annotated[str, about("the share by which clients reach it", Effect.AT_ONCE, example="files")]
    users: AllowedUsers = None
    hosts_allow: AllowedHosts = None
    hosts_deny: DeniedHosts = field(default_factory=list)
    ttl: Annotated[Positive, about("seconds that clients remember where a link leads", Effect.AT_ONCE)] = LINK_TTL
    failback: Annotated[
        bool, about("clients go back to a better target when it is there again", Effect.AT_ONCE, example=True)
    ] = False
    servers: Annotated[
        list[str],
        about(
            "list of the servers that have this namespace, as targets `//SERVER/NAME`",
            Effect.AT_ONCE,
            example=["//files1/files", "//files2/files"],
            unset="this one, by the name that the client has for it",
        ),
    ] = field(default_factory=list)
    link: Annotated[list[Link], about("its links: `[[namespace.link]]`", Effect.AT_ONCE, unset="none")] = field(
        default_factory=list
    )


class StoragePolicy(Section, kw_only=True):
    """What reads and writes with a policy may have ([storage-qos.md](storage-qos.md))."""

    id: Annotated[
        str,
        about("the GUID by which clients ask for it", Effect.AT_ONCE, example="ec320704-6443-426c-ab74-86413e90dbfb"),
    ]
    name: Annotated[str, about("for reports", Effect.AT_ONCE, example="gold")]
    minimum_iops: Annotated[
        NotNegative,
        about(
            "operations of 8 KiB per second that clients may expect; the server keeps nothing free for them",
            Effect.AT_ONCE,
            example=100,
        ),
    ] = 0
    maximum_iops: Annotated[
        NotNegative, about("operations of 8 KiB per second of one flow; 0: any number", Effect.AT_ONCE, example=500)
    ] = 0
    maximum_bandwidth: Annotated[
        NotNegative, about("KiB per second of one flow; 0: any number", Effect.AT_ONCE, example=51200)
    ] = 0


class Site(Section):
    """A part of the network whose machines are near to each other. Clients get the targets of their site first."""

    name: Annotated[str, about("compared without case", Effect.AT_ONCE, example="berlin")]
    networks: Annotated[
        list[str], about("list of the networks of its clients", Effect.AT_ONCE, example=["192.0.2.0/24"])
    ]
    nearest: Annotated[
        list[str],
        about(
            "list of other sites, the nearest first; those not named are the farthest",
            Effect.AT_ONCE,
            example=["paris"],
            unset="none is nearer than another",
        ),
    ] = field(default_factory=list)


class User(Section):
    """An account. One of `password`, `nt_hash` and `password_file` is needed."""

    name: Annotated[str, about("compared without case", example="alice")]
    password: Annotated[str | None, about("in clear text", secret=True, unset="none")] = None
    nt_hash: Annotated[
        NtHash | None,
        about(
            "or its NT hash, 32 hexadecimal digits; worth as much to a thief as the password, but not readable over "
            "a shoulder",
            secret=True,
            unset="none",
        ),
    ] = None
    password_file: Annotated[
        str | None,
        about("or a file; its first line is the password", example="/etc/smb3server/alice", is_path=True, unset="none"),
    ] = None
    principal: Annotated[
        str | None,
        about(
            "the Kerberos principal that has this account, `name@REALM` of any realm; then no other principal has it",
            example="alice@OTHER.EXAMPLE.COM",
            unset="the principal of this name in each of `trusted_realms`",
        ),
    ] = None
    unix_user: Annotated[
        str | None,
        about(
            "act with the uid, gid and groups of this user of the host; needs root, or CAP_SETUID and CAP_SETGID",
            example="www-data",
            unset="see [security.md](security.md)",
        ),
    ] = None


class Cluster(Section):
    """The cluster that this server is a node of. The section is the same on all nodes, except for the node's name."""

    etcd: Annotated[
        str | None,
        about("as `--cluster`", example="etcds://192.0.2.21:2379,192.0.2.22:2379,192.0.2.23:2379", unset="none"),
    ] = None
    node: Annotated[
        ClusterName | None,
        about("as `--node`", example="a", unset="none"),
    ] = None
    name: Annotated[
        ClusterName,
        about("distinguishes clusters that share an etcd"),
    ] = DEFAULT_NAME
    ttl: Annotated[Ttl, about("seconds until a dead node's services move")] = DEFAULT_TTL
    max_stall: Annotated[
        Stall | None,
        about(
            "seconds without a sign of life of the event loop, after which a running node gives up its services; at "
            "least `ttl`",
            example=12.0,
            unset="3 × `ttl`",
        ),
    ] = None
    fence_command: Annotated[
        list[str],
        about(
            "program with arguments, without a shell, that makes sure that a node which fell silent writes no more. It "
            "runs before the node's services are taken over, which waits until it returns 0. `{node}`, `{address}` and "
            "`{service}` are replaced ([high-availability.md](high-availability.md#fencing-a-silent-node))",
            example=["/usr/local/sbin/fence-node", "{node}"],
            unset="none",
        ),
    ] = field(default_factory=list)
    fence_timeout: Annotated[Wait, about("seconds that `fence_command` may take; after that it is run again")] = (
        DEFAULT_FENCE_TIMEOUT
    )
    storage_timeout: Annotated[
        Wait,
        about(
            "seconds after which a share's file system that does not answer counts as missing, so that its service "
            "moves"
        ),
    ] = DEFAULT_STORAGE_TIMEOUT
    ca: Annotated[
        str | None,
        about(
            "file with the certificate authority that signed etcd's certificate",
            example="/etc/smb3server/ca.pem",
            unset="the system's",
            is_path=True,
        ),
    ] = None
    cert: Annotated[
        str | None,
        about(
            "file with this node's certificate for etcd", example="/etc/smb3server/node.pem", unset="none", is_path=True
        ),
    ] = None
    key: Annotated[
        str | None,
        about(
            "file with the certificate's key; only its owner may read it",
            example="/etc/smb3server/node.key",
            unset="none",
            is_path=True,
        ),
    ] = None
    user: Annotated[str | None, about("of etcd", example="smb3server", unset="none")] = None
    password_file: Annotated[
        str | None,
        about(
            "file whose first line is the user's password; only its owner may read it",
            example="/etc/smb3server/etcd.password",
            unset="none",
            is_path=True,
        ),
    ] = None
    secret_file: Annotated[
        str | None,
        about(
            "file with the cluster's secret, the same on all nodes: `smb3server cluster secret FILE` makes one; only "
            "its owner may read it. Services with `continuous_availability` need it, unless `unauthenticated_store` "
            "is set",
            example="/etc/smb3server/cluster.secret",
            unset="none",
            is_path=True,
        ),
    ] = None
    unauthenticated_store: Annotated[
        bool,
        about(
            "do without a secret, because nobody else can write to etcd "
            "([high-availability.md](high-availability.md#security))"
        ),
    ] = False


class Service(Section):
    """A service of the cluster: shares and addresses that move together from node to node."""

    name: Annotated[ClusterName, about("letters, digits, `-` and `_`", example="files")]
    addresses: Annotated[
        list[str],
        about("`ADDRESS/PREFIX@INTERFACE`; they move with the service", example=["192.0.2.10/24@eth0"], unset="none"),
    ] = field(default_factory=list)
    nodes: Annotated[
        list[str], about("names of the nodes that may have it, best first", example=["a", "b"], unset="any")
    ] = field(default_factory=list)


class WitnessNode(Section):
    """Another node, where clients of this one can register."""

    name: Annotated[str, about("net name of the node", example="NODE-B")]
    addresses: Annotated[list[str], about("its addresses", example=["192.0.2.12"])]


class Witness(Section):
    """The Witness service (MS-SWN), which notifies clients when they should move to another node. Without this section
    it is off."""

    listen: Annotated[list[str], about("list of addresses", example=["192.0.2.11"], unset="that of `[server]`")] = (
        field(default_factory=list)
    )
    port: Annotated[Port, about("TCP port; 0: any free one, and clients ask the endpoint mapper for it")] = 0
    endpoint_mapper: Annotated[bool, about("also serve the endpoint mapper")] = True
    endpoint_mapper_port: Annotated[Port, about("its port; clients look for 135")] = 135
    require_privacy: Annotated[bool, about("refuse calls that are only signed")] = False
    names: Annotated[list[str], about("list of net names", example=["FILES"], unset="the server's name")] = field(
        default_factory=list
    )
    node: Annotated[
        list[WitnessNode], about("the other nodes: `[[witness.node]]` with `name` and `addresses`", unset="none")
    ] = field(default_factory=list)


class Log(Section):
    """Levels of single components of the log. A component without one has the level of `log_level`."""

    auth: Annotated[LogLevel | None, about("logons and sessions", example="debug", unset=_AS_ALL)] = None
    rdma: Annotated[LogLevel | None, about("SMB Direct and the RDMA fabrics", example="info", unset=_AS_ALL)] = None
    files: Annotated[
        LogLevel | None, about("shares and files; `debug` has a line for each request", example="info", unset=_AS_ALL)
    ] = None
    rpc: Annotated[LogLevel | None, about("pipes and RPC", example="warning", unset=_AS_ALL)] = None
    cluster: Annotated[LogLevel | None, about("cluster, stores and Witness", example="info", unset=_AS_ALL)] = None
    net: Annotated[LogLevel | None, about("connections", example="warning", unset=_AS_ALL)] = None


class Metrics(Section):
    """Metrics for Prometheus ([metrics.md](metrics.md)). Without this section there is no port for them."""

    listen: Annotated[str, about("address to listen on; whoever reaches it may read the metrics")] = _METRICS.listen
    port: Annotated[Port, about("TCP port; 0: none, `smb3server metrics` alone")] = _METRICS.port


class Web(Section):
    """The web page. Without this section there is none."""

    listen: Annotated[str, about("address to listen on")] = _WEB.listen
    port: Annotated[Port, about("TCP port; 0: any free one")] = _WEB.port
    admins: Annotated[
        list[str] | None,
        about("list of users who may log on to the page", example=["@staff"], unset="`admins` of `[server]`"),
    ] = None
    certificate: Annotated[
        str | None,
        about(
            "PEM file with the certificate, and with those between it and its authority",
            example="/etc/smb3server/web.pem",
            unset="plain HTTP",
            is_path=True,
        ),
    ] = None
    key: Annotated[
        str | None,
        about(
            "PEM file with the certificate's key; only its owner may read it",
            example="/etc/smb3server/web.key",
            unset="that of `certificate`",
            is_path=True,
        ),
    ] = None
    names: Annotated[
        list[str],
        about(
            "further host names by which browsers may ask for the page; addresses and the server's own names always "
            "may",
            example=["files.example.com"],
            unset="none",
        ),
    ] = field(default_factory=list)
    plain_http: Annotated[
        bool, about("serve other machines without TLS: passwords and the names of files cross the network in the clear")
    ] = False


class Quic(Section):
    """SMB over QUIC ([quic.md](quic.md)). Without this section nobody is served over QUIC."""

    certificate: Annotated[
        str,
        about(
            "PEM file with the server's certificate, and with those between it and its authority",
            example="/etc/smb3server/quic.pem",
            is_path=True,
        ),
    ]
    key: Annotated[
        str | None,
        about(
            "PEM file with the certificate's key; only its owner may read it",
            example="/etc/smb3server/quic.key",
            unset="that of `certificate`",
            is_path=True,
        ),
    ] = None
    listen: Annotated[
        list[str], about("list of addresses to listen on", example=["192.0.2.5"], unset="`listen` of `[server]`")
    ] = field(default_factory=list)
    port: Annotated[Port, about("UDP port; 0: any free one")] = 443
    client_authority: Annotated[
        str | None,
        about(
            "PEM file with the authorities that sign certificates of clients",
            example="/etc/smb3server/clients.pem",
            unset="none",
            is_path=True,
        ),
    ] = None
    clients: Annotated[
        list[str],
        about(
            "list of SHA-256 fingerprints of clients' certificates: no other client may connect",
            example=["01" * 32],
            unset="whoever has a certificate of `client_authority`; without that, everybody",
        ),
    ] = field(default_factory=list)


class Discovery(Section):
    """How clients find the server in their network. Without this section nothing is announced."""

    mdns: Annotated[bool, about("announce the server by mDNS (Finder, Nautilus, Dolphin)")] = True
    ws_discovery: Annotated[bool, about("announce the server by WS-Discovery (Windows Explorer)")] = True
    interfaces: Annotated[
        list[str],
        about(
            "names of the interfaces to announce on",
            example=["eth0"],
            unset="all that the server listens on, except loopback",
        ),
    ] = field(default_factory=list)
    workgroup: Annotated[str, about("workgroup that Explorer shows")] = _DISCOVERY.workgroup
    model: Annotated[str, about("model that chooses the icon in Finder")] = _DISCOVERY.model


class Domain(Section):
    """Membership in a domain of Active Directory ([domain-join.md](domain-join.md)). Without this section the server
    knows its own accounts only."""

    realm: Annotated[RealmName, about("the domain's name in DNS, which is its Kerberos realm", example="CONTOSO.COM")]
    workgroup: Annotated[
        NetbiosName | None, about("the domain's NetBIOS name", example="CONTOSO", unset="the first part of `realm`")
    ] = None
    machine: Annotated[
        NetbiosName | None,
        about("name of the machine account, without its `$`", example="FILES", unset="`name` of `[server]`"),
    ] = None
    controllers: Annotated[
        list[HostName],
        about(
            "list of host names of controllers, in the order to try",
            example=["dc01.contoso.com", "dc02.contoso.com"],
            unset="those that DNS names",
        ),
    ] = field(default_factory=list)
    site: Annotated[
        SiteName | None,
        about("site whose controllers are tried first", example="Default-First-Site-Name", unset="all are equal"),
    ] = None
    secret: Annotated[
        str | None,
        about(
            "file with the machine account's password; nodes of a cluster that are one machine share it",
            example="/var/lib/smb3server/domain.secret",
            unset="`domain.secret` in `state`",
            is_path=True,
        ),
    ] = None
    keytab: Annotated[
        str | None,
        about(
            "file with the machine account's keys",
            example="/var/lib/smb3server/domain.keytab",
            unset="`domain.keytab` beside `secret`",
            is_path=True,
        ),
    ] = None
    rotation: Annotated[
        Rotation, about('how old the machine account\'s password may get, as `"30d"`; `"never"`: as old as it likes')
    ] = "30d"
    idmap: Annotated[
        IdMapping,
        about(
            "how users and groups of the domain get their uid and gid: `rid`, `autorid`, `rfc2307` or `none` "
            "([domain.md](domain.md#ids))"
        ),
    ] = "rid"
    id_range: Annotated[
        list[int],
        about("first and last uid and gid of users and groups of the domain"),
        Meta(min_length=2, max_length=2),
    ] = field(default_factory=lambda: [FIRST_ID, LAST_ID])
    trusted_ranges: Annotated[
        list[str],
        about(
            "with `rid`, list of trusted domains: the SID of each, and its first and last uid and gid",
            example=["S-1-5-21-1-2-3 1000000-1099999"],
            unset="users of trusted domains are refused",
        ),
    ] = field(default_factory=list)
    central_policies: Annotated[
        list[str] | None,
        about(
            "list of names of central access policies that apply here ([domain.md](domain.md#central-access-policies))",
            example=["Finance Policy"],
            unset="all that the directory has",
        ),
    ] = None


class Document(Section):
    """The whole file."""

    server: Server = field(default_factory=Server)
    groups: Annotated[
        dict[str, list[str]],
        about(
            "Groups of users. Each key is the name of a group, each value its members, which may be groups.",
            example={"staff": ["alice", "dora"]},
        ),
    ] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    share: list[Share] = field(default_factory=list)
    homes: Homes | None = None
    namespace: list[Namespace] = field(default_factory=list)
    site: list[Site] = field(default_factory=list)
    storage_policy: list[StoragePolicy] = field(default_factory=list)
    user: list[User] = field(default_factory=list)
    cluster: Cluster = field(default_factory=Cluster)
    service: list[Service] = field(default_factory=list)
    witness: Witness | None = None
    log: Log | None = None
    metrics: Metrics | None = None
    web: Web | None = None
    quic: Quic | None = None
    discovery: Discovery | None = None
    domain: Domain | None = None
