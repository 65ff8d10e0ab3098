"""The keys of a share that its rules read as they stand in the configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from smb3server.settings.declaring import Duration, Effect, NotNegative, Section, about


class ConnectionRules(Section, kw_only=True):
    """What decides who may connect, and how it is shown: the keys of shares and of namespaces."""

    encrypt: Annotated[
        bool,
        about(
            "the share is only for sessions that encrypt, and each request must be encrypted",
            Effect.NEW_TREES,
            example=True,
        ),
    ] = False
    guest: Annotated[bool, about("guests and anonymous users are let in, unless `users` is set", Effect.AT_ONCE)] = (
        False
    )
    comment: Annotated[
        str, about("shown in lists of shares", Effect.AT_ONCE, example="what everybody needs", other_name="remark")
    ] = ""
    max_connections: Annotated[
        NotNegative, about("most tree connects to the share at a time; 0: any number", Effect.NEW_TREES, example=100)
    ] = 0
    hidden: Annotated[
        bool,
        about(
            "left out of lists of shares, as are names that end in `$`; users who know the name and may use the "
            "share can use it",
            Effect.AT_ONCE,
        ),
    ] = False


class ShareRules(ConnectionRules, kw_only=True):
    """What a share allows. ``Share.rules`` has it: a new key is declared here, and read by the code that obeys it."""

    read_only: Annotated[bool, about("nobody writes, except users in `write_list`", Effect.NEW_OPENS)] = False
    access_based_enumeration: Annotated[
        bool, about("folders list only entries that the user may read", Effect.AT_ONCE, example=True)
    ] = False
    compress: Annotated[
        bool,
        about(
            "clients learn that they should have data compressed on the way ([compression.md](compression.md)); "
            "without it they may ask for that all the same",
            Effect.NEW_TREES,
            example=True,
        ),
    ] = False
    offline_files: Annotated[
        Literal["manual", "documents", "programs", "none"],
        about(
            "what Windows clients may keep for use without the server: files that their user chooses, all that they "
            "open, the same for programs, or nothing, as for databases and virtual machines",
            Effect.NEW_TREES,
            example="none",
        ),
    ] = "manual"
    hide_dot_files: Annotated[
        bool, about("names that begin with a dot are shown as hidden", Effect.AT_ONCE, example=True)
    ] = False
    case_sensitive: Annotated[
        bool,
        about(
            "names that differ in case only are different files; Windows and macOS clients do not expect that "
            "([local-backend.md](local-backend.md#names))",
            Effect.NEW_OPENS,
        ),
    ] = False
    posix: Annotated[
        bool,
        about(
            "Linux clients that mount with `posix` get modes, owners, symlinks, special files and all names "
            "([posix.md](posix.md)); Windows clients see such names with other characters, and of names that differ "
            "in case only one",
            Effect.NEW_OPENS,
            example=True,
        ),
    ] = False
    recycle: Annotated[
        bool,
        about(
            "move deleted files to `recycle_folder` ([local-backend.md](local-backend.md#recycle-folder))",
            Effect.AT_ONCE,
            example=True,
        ),
    ] = False
    recycle_folder: Annotated[
        str,
        about("folder in the share for deleted files; `{user}` is the name of the user who deletes", Effect.AT_ONCE),
    ] = ".recycle/{user}"
    recycle_max_size: Annotated[
        NotNegative, about("bytes; larger files are deleted at once; 0: none is", Effect.AT_ONCE, example=1073741824)
    ] = 0
    recycle_keep_days: Annotated[
        NotNegative,
        about(
            "days after which a deleted file is removed from the recycle folder ([keeping.md](keeping.md)); 0: never",
            Effect.AT_ONCE,
            example=30,
        ),
    ] = 0
    recycle_max_total: Annotated[
        NotNegative,
        about(
            "bytes that the recycle folder holds: of more, the oldest files are removed, of the user who has most; 0: "
            "any number",
            Effect.AT_ONCE,
            example=107374182400,
        ),
    ] = 0
    worm: Annotated[
        bool,
        about(
            "files that have not changed for `worm_grace_period` can neither be changed nor renamed any more, and be "
            "deleted only after `worm_retention` ([keeping.md](keeping.md#files-that-nobody-changes-any-more))",
            Effect.REPLACED,
        ),
    ] = False
    worm_grace_period: Annotated[
        Duration, about("how long a file stays free after its last change", Effect.REPLACED, example="10m")
    ] = "1h"
    worm_retention: Annotated[
        Duration | None,
        about(
            "how long after its last change a file can be deleted again; it still cannot be changed",
            Effect.REPLACED,
            example="3650d",
            unset="never",
        ),
    ] = None
    snapshots: Annotated[
        str,
        about(
            "where the share's snapshots are, which clients see as previous versions: a path with the time in one of "
            "its components ([previous-versions.md](previous-versions.md)); empty: there are none",
            Effect.NEW_OPENS,
            example=".snapshots/@GMT-%Y.%m.%d-%H.%M.%S",
        ),
    ] = ""
    snapshot_times: Annotated[
        Literal["utc", "local"],
        about(
            '`"local"`: the times in the names of snapshots are those of this machine\'s time zone', Effect.NEW_OPENS
        ),
    ] = "utc"
    shadow_copies: Annotated[
        bool,
        about(
            "backup programs of administrators may make snapshots, which are shares of their own "
            "([previous-versions.md](previous-versions.md#backup-programs)); needs `snapshots` on btrfs",
            Effect.AT_ONCE,
        ),
    ] = False
    continuous_availability: Annotated[
        bool,
        about(
            "persistent handles, which survive the server; needs `state` or a `service`", Effect.REPLACED, example=True
        ),
    ] = False
    streams: Annotated[bool, about("alternate data streams", Effect.NEW_OPENS)] = True
    macos: Annotated[
        bool,
        about(
            "Apple's extensions for Macs: Finder information, resource forks, quick listings, copies on the server, "
            "F_FULLFSYNC ([time-machine.md](time-machine.md))",
            Effect.REPLACED,
            example=True,
        ),
    ] = False
    macos_file_ids: Annotated[
        bool,
        about(
            "Macs get numbers of files, and find files by them (aliases); on ext4, XFS and btrfs, for a server that "
            "runs as root ([time-machine.md](time-machine.md#numbers-of-files))",
            Effect.REPLACED,
        ),
    ] = False
    time_machine: Annotated[
        bool,
        about(
            "Macs back up to the share with Time Machine; includes `macos`, and `[discovery]` announces it "
            "([time-machine.md](time-machine.md))",
            Effect.REPLACED,
            example=True,
        ),
    ] = False
    time_machine_max_size: Annotated[
        NotNegative, about("bytes that Macs see as the size of the share; 0: that of the volume", Effect.AT_ONCE)
    ] = 0
    symlinks: Annotated[
        Literal["beneath", "never"],
        about(
            '`"beneath"` follows symlinks that stay in the share ([local-backend.md](local-backend.md)), `"never"` '
            "follows none",
            Effect.NEW_OPENS,
        ),
    ] = "beneath"
    posix_locks: Annotated[
        bool,
        about(
            "byte-range locks of clients hold against programs of the host, and the other way round",
            Effect.REPLACED,
            example=True,
        ),
    ] = False
    delayed_write_times: Annotated[
        bool,
        about(
            "a write shows in the last write time two seconds later, on a flush or on the close, as on Windows "
            "before 10 version 1809; otherwise it shows at once",
            Effect.NEW_OPENS,
        ),
    ] = False
    level2_oplocks: Annotated[
        bool,
        about(
            "clients may cache with a shared (level 2) oplock what they read; `false`: only exclusive oplocks",
            Effect.NEW_OPENS,
        ),
    ] = True
    one_sided: Annotated[
        bool,
        about(
            "clients of this project may read and write files by RDMA without requests; these bytes are neither signed "
            "nor encrypted ([flashnet.md](flashnet.md))",
            Effect.NEW_OPENS,
            example=True,
        ),
    ] = False
    shared_virtual_disks: Annotated[
        bool,
        about(
            "several machines may open a virtual disk (.vhdx, .vhds) in the share at the same time, with reservations "
            "and snapshots ([shared-virtual-disks.md](shared-virtual-disks.md))",
            Effect.NEW_OPENS,
            example=True,
        ),
    ] = False
    force_level2_oplocks: Annotated[
        bool,
        about(
            "clients may cache what they read, and never what they write: requests for exclusive and batch oplocks get "
            "level 2, leases no write caching",
            Effect.NEW_OPENS,
        ),
    ] = False
    rename_open_folders: Annotated[
        bool,
        about(
            "folders can be renamed while files below them are open, as on Samba; otherwise that is refused, as on "
            "Windows",
            Effect.AT_ONCE,
        ),
    ] = False
    change_notify: Annotated[bool, about("notify clients of changes in folders they watch", Effect.AT_ONCE)] = True
    strict_allocate: Annotated[
        bool,
        about(
            "reserve all the space that clients ask for ahead; `false`: reserve at most `max_reserved_per_user` of "
            "it, and only check that the rest is free",
            Effect.AT_ONCE,
        ),
    ] = False
    slow_storage: Annotated[
        Literal["auto"] | bool,
        about(
            "the share's storage may answer late, or not at all: only requests for this share wait for it, one after "
            'another ([slow-storage.md](slow-storage.md)); `"auto"`: network and FUSE file systems do. All shares of '
            "one file system should have the same value",
            Effect.REPLACED,
            example=True,
        ),
    ] = "auto"
    keep_inherited_flag: Annotated[
        bool, about("store DACL_AUTO_INHERITED as clients send it, not by Windows' rule", Effect.AT_ONCE)
    ] = False

    @property
    def for_macs(self) -> bool:
        """Whether the share has Apple's extensions."""
        return self.macos or self.time_machine
