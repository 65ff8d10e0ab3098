"""FSCTL_DFS_GET_REFERRALS and FSCTL_DFS_GET_REFERRALS_EX. [MS-SMB2 3.3.5.15.2, MS-DFSC 3.2.5]"""

from __future__ import annotations

from smb3server.commands.fsctl.ioctl import NO_FILE, Control, fsctl
from smb3server.dfs.namespace import Link, Namespace, Target, target_sets
from smb3server.dispatch.request import Response
from smb3server.state.caller import may_use
from smb3server.state.share import ShareType
from smb3server.wire import dfs
from smb3server.wire.dfs import ReferralFlags, ReferralTarget
from smb3server.wire.fields import encode_name
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer

_ROOT = ReferralFlags.REFERRAL_SERVERS | ReferralFlags.STORAGE_SERVERS


@fsctl(Fsctl.DFS_GET_REFERRALS)
@fsctl(Fsctl.DFS_GET_REFERRALS_EX)
def get_referrals(control: Control) -> Buffer | Response:
    """Say which servers have a path of a namespace. Raises ``StatusError``.

    Users whom the namespace's share does not admit get the answer for a namespace that is not there."""
    if control.file_id != NO_FILE:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    server, connection = control.request.server, control.request.connection
    if not server.serves_dfs:
        raise StatusError(NtStatus.FS_DRIVER_REQUIRED)
    if control.request.tree.share.type is not ShareType.PIPE:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    extended = control.code == Fsctl.DFS_GET_REFERRALS_EX
    asked = dfs.parse_extended_request(control.data) if extended else dfs.parse_request(control.data)
    version = min(asked.max_level, dfs.HIGHEST_VERSION)
    path = asked.path.strip("\\").split("\\")
    # A path of one component asks for a domain or its controllers. [MS-DFSC 3.2.5.2, 3.2.5.3]
    if not version or len(path) < 2 or "" in path:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    share = server.share_list.get(path[1].casefold())
    if share is None or share.namespace is None or not may_use(control.request.session, share, server.accounts):
        raise StatusError(NtStatus.NOT_FOUND)
    namespace = share.namespace
    link = namespace.covering(tuple(path[2:]))
    matched = path[: 2 + len(link.path) if link is not None else 2]
    targets = link.targets if link is not None else namespace.targets or (Target("", (namespace.name,)),)
    site = namespace.site_of(connection.client_name, asked.site)
    found = [
        ReferralTarget("\\".join(("", target.server or path[0], *target.path)), number == 0)
        for one in target_sets(targets, site)
        for number, target in enumerate(one)
    ]
    prefix = "\\".join(("", *matched))
    leading = len(asked.path) - len(asked.path.lstrip("\\"))
    answer = dfs.Referral(
        (leading - 1) * 2 + len(encode_name(prefix)),
        _flags(control, namespace, link, path[0]),
        link is None,
        namespace.ttl if link is None or link.ttl is None else link.ttl,
        prefix,
        found,
    )
    packed = dfs.pack_referral(version, answer, control.max_output)
    if packed is None:
        return control.respond(status=NtStatus.BUFFER_OVERFLOW)
    return packed


def _flags(control: Control, namespace: Namespace, link: Link | None, host: str) -> int:
    """Return ReferralHeaderFlags. A link to a namespace, as far as this server knows, leads on. [MS-DFSC 3.2.5.5]

    ``host``: the name that the client has for this server."""
    if link is None:
        flags = _ROOT
    else:
        own = ("", host.casefold(), control.request.server.settings.server_name.casefold())
        shares = [
            control.request.server.share_list.get(target.path[0].casefold())
            for target in link.targets
            if target.server.casefold() in own
        ]
        leads_on = any(share is not None and share.namespace is not None for share in shares)
        flags = ReferralFlags.REFERRAL_SERVERS if leads_on else ReferralFlags.STORAGE_SERVERS
    failback = namespace.failback or (link is not None and bool(link.failback))
    return flags | (ReferralFlags.TARGET_FAILBACK if failback else 0)
