"""What SACLs ask to be recorded, and which parts of a descriptor need which rights. [MS-DTYP 2.4.4.10, 2.4.7]"""

from __future__ import annotations

import pytest

from smb3server.access import required
from smb3server.access.auditing import audited_access
from smb3server.access.check import Token
from smb3server.access.claims import Claim, Claims, ClaimType
from smb3server.access.conditions.expression import pack
from smb3server.access.conditions.text import parse_condition
from smb3server.access.descriptor import EVERYONE, OWNER_RIGHTS, Ace, AceFlag, AceType, Acl, SecurityDescriptor, Sid
from smb3server.access.masks import FILE_ALL_ACCESS
from smb3server.access.posix import user_sid
from smb3server.access.privileges import BACKUP_ACCESS, RESTORE_ACCESS, Privilege, access_for_backup
from smb3server.wire.create import Access
from smb3server.wire.query_info import SecurityInformation
from smb3server.wire.status import StatusError

ALICE, BOB = user_sid(1000), user_sid(1001)
CLAIMS = Claims((Claim("Level", ClaimType.INT64, (5,)),))
TOKEN = Token(ALICE, frozenset({ALICE, EVERYONE}), EVERYONE, 0, CLAIMS)
SUCCESS, FAILURE = int(AceFlag.SUCCESSFUL_ACCESS), int(AceFlag.FAILED_ACCESS)
READ, WRITE = int(Access.READ_DATA), int(Access.WRITE_DATA)
SYSTEM_SECURITY = int(Access.ACCESS_SYSTEM_SECURITY)


def _condition(text: str) -> bytes:
    return pack(parse_condition(text))


def _of(*aces: Ace, owner: Sid = BOB) -> SecurityDescriptor:
    return SecurityDescriptor(owner, EVERYONE, None, Acl(aces))


@pytest.mark.parametrize(
    ("ace", "owner", "access", "successful", "expected"),
    [
        (Ace(AceType.AUDIT, SUCCESS, READ, EVERYONE), BOB, READ | WRITE, True, READ),
        (Ace(AceType.AUDIT, SUCCESS, READ, EVERYONE), BOB, READ, False, 0),
        (Ace(AceType.AUDIT, FAILURE, READ, ALICE), BOB, READ, False, READ),
        (Ace(AceType.AUDIT, SUCCESS | FAILURE, READ, BOB), BOB, READ, True, 0),
        (Ace(AceType.AUDIT, SUCCESS, READ, OWNER_RIGHTS), ALICE, READ, True, READ),
        (Ace(AceType.AUDIT, SUCCESS, READ, OWNER_RIGHTS), BOB, READ, True, 0),
        (Ace(AceType.AUDIT, SUCCESS, int(Access.GENERIC_WRITE), EVERYONE), BOB, WRITE, True, WRITE),
        (Ace(AceType.AUDIT, SUCCESS | AceFlag.INHERIT_ONLY, READ, EVERYONE), BOB, READ, True, 0),
        (Ace(AceType.AUDIT_CALLBACK, SUCCESS, READ, EVERYONE, b"artx"), BOB, READ, True, READ),
        (Ace(AceType.AUDIT_CALLBACK, SUCCESS, READ, EVERYONE, _condition("@User.Level == 5")), BOB, READ, True, READ),
        (Ace(AceType.AUDIT_CALLBACK, SUCCESS, READ, EVERYONE, _condition("@User.Level == 4")), BOB, READ, True, 0),
        (Ace(AceType.AUDIT_CALLBACK, SUCCESS, READ, EVERYONE, _condition("@User.Other == 4")), BOB, READ, True, READ),
        (Ace(AceType.AUDIT_CALLBACK, SUCCESS, READ, BOB, _condition("@User.Level == 5")), BOB, READ, True, 0),
        (Ace(AceType.ALARM, SUCCESS, READ, EVERYONE), BOB, READ, True, 0),
        (Ace(AceType.MANDATORY_LABEL, SUCCESS, READ, EVERYONE), BOB, READ, True, 0),
    ],
)
def test_which_rights_are_recorded(ace: Ace, owner: Sid, access: int, successful: bool, expected: int) -> None:
    assert audited_access(_of(ace, owner=owner), TOKEN, access, successful) == expected


def test_nothing_is_recorded_without_a_sacl() -> None:
    assert audited_access(SecurityDescriptor(ALICE, EVERYONE, Acl()), TOKEN, FILE_ALL_ACCESS, True) == 0


def test_backup_means_the_whole_descriptor() -> None:
    parts = required.parts_of(SecurityInformation.BACKUP)
    assert parts & SecurityInformation.SACL and parts & SecurityInformation.DACL and parts & SecurityInformation.OWNER
    assert required.parts_of(SecurityInformation.DACL) == SecurityInformation.DACL
    with pytest.raises(StatusError):
        required.check_query_security(FILE_ALL_ACCESS, parts)
    required.check_query_security(int(Access.READ_CONTROL) | SYSTEM_SECURITY, parts)
    for lacking in (Access.WRITE_DAC, Access.WRITE_OWNER, Access.ACCESS_SYSTEM_SECURITY):
        granted = (FILE_ALL_ACCESS | SYSTEM_SECURITY) & ~int(lacking)
        with pytest.raises(StatusError):
            required.check_set_security(granted, parts, FILE_ALL_ACCESS)
    required.check_set_security(FILE_ALL_ACCESS | SYSTEM_SECURITY, parts, FILE_ALL_ACCESS)


def test_a_sacl_needs_more_than_full_control() -> None:
    with pytest.raises(StatusError):
        required.check_query_security(FILE_ALL_ACCESS, SecurityInformation.SACL)
    with pytest.raises(StatusError):
        required.check_set_security(FILE_ALL_ACCESS, SecurityInformation.SACL, FILE_ALL_ACCESS)


def test_privileges_give_what_the_specification_names() -> None:
    assert access_for_backup(Privilege.SECURITY | Privilege.MANAGE_VOLUME) == 0
    assert access_for_backup(Privilege.BACKUP) == BACKUP_ACCESS == 0x011200A9
    assert access_for_backup(Privilege.RESTORE) == RESTORE_ACCESS == 0x011F0116
    assert not BACKUP_ACCESS & (WRITE | Access.WRITE_DAC | Access.DELETE)
    assert not RESTORE_ACCESS & READ
