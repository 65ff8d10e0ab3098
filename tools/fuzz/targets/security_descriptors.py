"""Security descriptors: decoding, conditions, text, and what encoding again keeps. [MS-DTYP 2.4, 2.5.1]"""

from __future__ import annotations

from collections.abc import Iterator

from smb3server.access import check, descriptor, sddl
from smb3server.access.check import Token
from smb3server.access.claims import Claim, Claims, ClaimType
from smb3server.access.descriptor import Ace, Acl, SecurityDescriptor, Sid, allow, deny
from smb3server.access.resource_attributes import attributes_of
from tools.fuzz.target import Target, Wrong

TOKEN = Token(
    Sid(5, (21, 1, 2, 3, 1000)),
    frozenset({descriptor.EVERYONE, descriptor.AUTHENTICATED_USERS}),
    Sid(5, (32, 545)),
    claims=Claims((Claim("Level", ClaimType.INT64, (5,)),)),
)
CONDITIONAL = (
    "D:(XD;;FX;;;WD;(@User.Level < @Resource.Level || Exists a))"
    '(XA;;FA;;;WD;(@Resource.Project Any_of {"SQL", #01, SID(BA)} && !(Member_of {SID(AU)})))'
    'S:(RA;;;;;WD;("Level",TI,0,7))(RA;;;;;WD;("Project",TS,0,"SQL","Azure"))(SP;;;;;S-1-17-1)'
)


def _run(data: bytes) -> None:
    found = descriptor.unpack(data)
    try:
        packed = found.pack()
        again = descriptor.unpack(packed)
    except ValueError as error:
        raise Wrong(f"what was decoded cannot be encoded: {error}") from error
    if again.pack() != packed:
        raise Wrong(f"{found} became {again}")
    if check.granted_access(found, TOKEN) != check.granted_access(again, TOKEN):
        raise Wrong("another access after encoding")
    attributes_of(found)
    shown = sddl.show(found)
    if sddl.show(sddl.parse(shown)) != shown:
        raise Wrong(f"{shown} is another text after reading it")


def _seeds() -> Iterator[bytes]:
    user = TOKEN.user
    for aces in ([allow(user, 0x1F01FF)], [deny(user, 1), allow(descriptor.EVERYONE, 0x120089, 3)], []):
        acl = Acl(tuple(aces))
        yield SecurityDescriptor(user, Sid(5, (32, 544)), acl).pack()
        yield SecurityDescriptor(user, None, None, acl).pack()
    yield sddl.parse(CONDITIONAL).pack()
    odd = Acl((Ace(0x12, 0, 0, None, bytes(20)), Ace(5, 0, 1, user, bytes(20))))
    yield SecurityDescriptor(dacl=odd).pack()


TARGET = Target(_run, _seeds, declared=(ValueError,), max_input=2048)
