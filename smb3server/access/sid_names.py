"""Two letters that stand for well-known SIDs in texts. [MS-DTYP 2.4.2.4, 2.5.1.1]"""

from __future__ import annotations

from smb3server.access.descriptor import Sid

_BUILTIN = {
    "BA": 544,
    "BU": 545,
    "BG": 546,
    "PU": 547,
    "AO": 548,
    "SO": 549,
    "PO": 550,
    "BO": 551,
    "RE": 552,
    "RU": 554,
    "RD": 555,
    "NO": 556,
    "MU": 558,
    "LU": 559,
    "IS": 568,
    "CY": 569,
    "ER": 573,
    "CD": 574,
    "RA": 575,
    "ES": 576,
    "MS": 577,
    "HA": 578,
    "AA": 579,
    "RM": 580,
}
_FIXED = {
    "WD": Sid(1, (0,)),
    "CO": Sid(3, (0,)),
    "CG": Sid(3, (1,)),
    "OW": Sid(3, (4,)),
    "NU": Sid(5, (2,)),
    "IU": Sid(5, (4,)),
    "SU": Sid(5, (6,)),
    "AN": Sid(5, (7,)),
    "ED": Sid(5, (9,)),
    "PS": Sid(5, (10,)),
    "AU": Sid(5, (11,)),
    "RC": Sid(5, (12,)),
    "SY": Sid(5, (18,)),
    "LS": Sid(5, (19,)),
    "NS": Sid(5, (20,)),
    "WR": Sid(5, (33,)),
    "UD": Sid(5, (84, 0, 0, 0, 0, 0)),
    "AC": Sid(15, (2, 1)),
    "LW": Sid(16, (4096,)),
    "ME": Sid(16, (8192,)),
    "MP": Sid(16, (8448,)),
    "HI": Sid(16, (12288,)),
    "SI": Sid(16, (16384,)),
    **{name: Sid(5, (32, rid)) for name, rid in _BUILTIN.items()},
}
_OF_DOMAIN = {
    "RO": 498,
    "LA": 500,
    "LG": 501,
    "DA": 512,
    "DU": 513,
    "DG": 514,
    "DC": 515,
    "DD": 516,
    "CA": 517,
    "SA": 518,
    "EA": 519,
    "PA": 520,
    "CN": 522,
    "RS": 553,
}
_NAMES = {sid: name for name, sid in _FIXED.items()}


def parse_sid(text: str, domain: Sid | None) -> Sid:
    """Read a SID or its two letters. Raises ``ValueError``.

    ``domain``: of which domain the accounts are that letters name. None: such letters are not understood."""
    known = _FIXED.get(text.upper())
    if known is not None:
        return known
    rid = _OF_DOMAIN.get(text.upper())
    if rid is None:
        return Sid.parse(text)
    if domain is None:
        raise ValueError(f"{text} is an account of a domain, and there is none")
    return Sid(domain.authority, (*domain.sub_authorities, rid))


def show_sid(sid: Sid) -> str:
    """Return the two letters of a SID that is the same everywhere, or its numbers."""
    return _NAMES.get(sid, str(sid))
