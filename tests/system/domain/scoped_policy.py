"""What a client of Windows does about central access policies, by impacket: run as a program on the tests' client."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from impacket.dcerpc.v5 import lsat, transport
from impacket.dcerpc.v5.dtypes import ULONG
from impacket.dcerpc.v5.ndr import NDRCALL
from impacket.smb3structs import FILE_DIRECTORY_FILE, FILE_OPEN, SMB2_0_INFO_SECURITY
from impacket.smbconnection import SMBConnection
from impacket.uuid import uuidtup_to_bin

from smb3server.access.descriptor import Ace, AceFlag, AceType, Acl, SecurityDescriptor, Sid

_SCOPE, _SECURITY = 0x40, 0x01020000
"""SCOPE_SECURITY_INFORMATION; ACCESS_SYSTEM_SECURITY and READ_CONTROL."""


class LsarGetAvailableCAPIDs(NDRCALL):  # type: ignore[misc]
    """[MS-CAPR 3.1.4.1]"""

    opnum = 0
    structure = ()


class LsarGetAvailableCAPIDsResponse(NDRCALL):  # type: ignore[misc]
    structure = (("WrappedCAPIDs", lsat.LSAPR_SID_ENUM_BUFFER), ("ErrorCode", ULONG))


def set_policy(connection: Any, share: str, folder: str, policy: Sid) -> None:
    """Have a policy apply to a folder and to what is made in it."""
    entry = Ace(AceType.SCOPED_POLICY_ID, AceFlag.CONTAINER_INHERIT | AceFlag.OBJECT_INHERIT, 0, policy)
    tree = connection.connectTree(share)
    file = connection.createFile(
        tree, folder, desiredAccess=_SECURITY, creationOption=FILE_DIRECTORY_FILE, creationDisposition=FILE_OPEN
    )
    connection.getSMBServer().setInfo(
        tree,
        file,
        SecurityDescriptor(sacl=Acl((entry,))).pack(),
        infoType=SMB2_0_INFO_SECURITY,
        fileInfoClass=0,
        additionalInformation=_SCOPE,
    )
    connection.closeFile(tree, file)


def available(host: str, user: str, password: str, domain: str) -> list[str]:
    """Return the ids of the policies that a server applies, as the dialog for permissions asks for them."""
    pipe = transport.DCERPCTransportFactory(rf"ncacn_np:{host}[\PIPE\lsarpc]")
    pipe.set_credentials(user, password, domain)
    rpc = pipe.get_dce_rpc()
    rpc.connect()
    rpc.bind(uuidtup_to_bin(("afc07e2e-311c-4435-808c-c483ffeec7c9", "1.0")))
    answer = rpc.request(LsarGetAvailableCAPIDs())
    assert answer["ErrorCode"] == 0
    return [entry["Sid"].formatCanonical() for entry in answer["WrappedCAPIDs"]["SidInfo"]]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("host", "domain", "user", "password"):
        parser.add_argument(name)
    parser.add_argument("--set", nargs=3, metavar=("SHARE", "FOLDER", "POLICY"))
    given = parser.parse_args()
    if given.set:
        connection = SMBConnection(given.host, given.host)
        connection.login(given.user, given.password, given.domain)
        share, folder, policy = given.set
        set_policy(connection, share, folder, Sid.parse(policy))
        connection.close()
    else:
        sys.stdout.write("".join(f"{one}\n" for one in available(given.host, given.user, given.password, given.domain)))


if __name__ == "__main__":
    main()
