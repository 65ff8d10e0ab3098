"""What the SACL of a file asks to be recorded. [MS-DTYP 2.4.4.10, 2.5.3.2]"""

from __future__ import annotations

from smb3server.access.check import Token, applies, facts_of
from smb3server.access.conditions.evaluation import Facts, evaluate
from smb3server.access.descriptor import AceFlag, AceType, SecurityDescriptor
from smb3server.access.masks import map_generic

_CONDITIONAL = frozenset((int(AceType.AUDIT_CALLBACK), int(AceType.AUDIT_CALLBACK_OBJECT)))
_AUDITING = _CONDITIONAL | {int(AceType.AUDIT), int(AceType.AUDIT_OBJECT)}


def audited_access(descriptor: SecurityDescriptor, token: Token, access: int, successful: bool) -> int:
    """Return the rights in ``access`` whose use the SACL wants recorded. 0 means that nothing is recorded.

    ``access`` was granted to the user (``successful``) or refused. An entry whose condition is UNKNOWN counts, so that
    nothing is missed.
    """
    if descriptor.sacl is None:
        return 0
    wanted = AceFlag.SUCCESSFUL_ACCESS if successful else AceFlag.FAILED_ACCESS
    is_owner = descriptor.owner is not None and descriptor.owner in token.sids
    found = 0
    facts: Facts | None = None
    for ace in descriptor.sacl.aces:
        if ace.type in _AUDITING and ace.flags & wanted and applies(ace, token, is_owner):
            if ace.type in _CONDITIONAL:
                facts = facts or facts_of(token, descriptor)
                if evaluate(ace.data, facts, denying=False) is False:
                    continue
            found |= map_generic(ace.mask) & access
    return int(found)
