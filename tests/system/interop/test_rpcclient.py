"""rpcclient's commands that have an answer: none ends it with a crash, and what it prints makes sense.

``queryaliasinfo`` is missing: rpcclient 4.17 reads a missing argument there and crashes, whatever server it asks.
``querydominfo 12`` is, too: it prints negative durations, which [MS-SAMR 2.2.3.15] has, as huge numbers.
"""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.lab.command import Served

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("rpcclient") is None, reason="rpcclient is not installed"),
]

ANSWERS = {
    "srvinfo": r"os version\s+:\s+10\.0",
    "srvinfo 102": r"users\s+:",
    "netshareenumall 1": r"netname: share\b",
    "netshareenumall 502": r"path:\s+C:\\.*share",
    "netsharegetinfo share 1005": "flags: 0x",
    "netfileenum 3": r"\\PIPE\\srvsvc",
    "netsessenum": "Received 1 entries",
    "lsaquery": "Domain Name: WORKGROUP",
    "lsaquery 5": r"Domain Sid: S-1-5-21-",
    "lsaquery 12": "Domain NetBios Name: WORKGROUP",
    "lookupsids S-1-5-32-544": r"BUILTIN\\Administrators \(4\)",
    "lookupsids3 S-1-5-32-544": r"Administrators \(4\)",
    "lookupsids_level 1 S-1-5-32-544": r"BUILTIN\\Administrators \(4\)",
    "lookupnames4 u": r"u S-1-5-21-\S+ \(User: 1\)",
    "getusername": r"Account Name: u, Authority Name: \w",
    "enumprivs": r"found 34 privileges[^?]*SeBackupPrivilege\s+0:17 \(0x0:0x11\)",
    "lsaenumsid": "NT_STATUS_NO_MORE_ENTRIES",
    "lsaenumacctrights S-1-5-32-544": "NT_STATUS_OBJECT_NAME_NOT_FOUND",
    "lsaenumprivsaccount S-1-5-32-544": "NT_STATUS_OBJECT_NAME_NOT_FOUND",
    "lsalookupprivvalue SeBackupPrivilege": "0:17",
    "lsalookupprivvalue SeNothingPrivilege": "NT_STATUS_NO_SUCH_PRIVILEGE",
    "getdispname SeBackupPrivilege": "Back up files and directories",
    "getdispname SeNothingPrivilege": "NT_STATUS_NO_SUCH_PRIVILEGE",
    "lsaquerysecobj": r"SID: S-1-1-0",
    "dsroledominfo": r"Machine Role = \[2\]",
    "netsharegetinfo nothing": "WERR_NERR_NETNAMENOTFOUND",
    "enumtrust": "^$",
    "enumdomains": r"name:\[Builtin\] idx:\[0x1\]",
    "enumdomusers": r"user:\[u\]",
    "enumdomgroups": r"group:\[None\] rid:\[0x201\]",
    "querygroup 513": "Num Members:1",
    "querygroupmem 513": r"rid:\[0x\w+\] attr:\[0x7\]",
    "queryuser u": r"User Name\s+:\s+u\n",
    "queryuser u 16": r"Acct Flags\s+:\s+ox210",
    "querydispinfo": r"Account: u\s",
    "querydispinfo 2": "^$",
    "querydispinfo 3": r"RID: 0x201 .*Account: None",
    "querydispinfo 4": "Account: u$",
    "querydispinfo 5": "Account: None$",
    "querydispinfo2": r"Account: u\s",
    "querydispinfo3": r"Account: u\s",
    "samlookuprids builtin 544 545": r"rid 0x221: Users \(4\)",
    "getdompwinfo": "min_password_length: 8",
    "querydominfo 1": r"password expire in:\s+Never",
    "querydominfo 2": r"Total Users:\s+1\n[^?]*Unknown 3:\s+0x1\n",
    "querydominfo 3": r"Force Logoff:\s+-1",
    "querydominfo 4": r"Comment:\s+\w",
    "querydominfo 5": r"Domain:\s+\w",
    "querydominfo 6": "Server:",
    "querydominfo 7": "ROLE_DOMAIN_PDC",
    "querydominfo 8": r"Sequence No:\s+1",
    "querydominfo 9": "Domain Server State:\t0x1",
    "querydominfo 10": "NT_STATUS_INVALID_INFO_CLASS",
    "querydominfo 11": "cannot display",
    "querydominfo 13": r"Sequence No at last promotion:\s+0",
}
"""What the output of each command has."""


def test_every_command_has_its_answer(served: Served) -> None:
    wrong = []
    for command, expected in ANSWERS.items():
        arguments = ["rpcclient", "-p", str(served.port), "-U", "u%pw", "127.0.0.1", "-c", command]
        ended = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
        if ended.returncode not in (0, 1) or not re.search(expected, ended.stdout.strip(" "), re.MULTILINE):
            wrong.append((command, ended.returncode, ended.stdout, ended.stderr))
    assert not wrong
