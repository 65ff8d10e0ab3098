"""Numbers of the negotiable algorithms. [MS-SMB2 2.2.3.1.1, 2.2.3.1.2, 2.2.3.1.7]"""

from __future__ import annotations

import enum


class Cipher(enum.IntEnum):
    """Encryption algorithms. NONE means that no cipher was negotiated. [MS-SMB2 2.2.3.1.2]"""

    NONE = 0
    AES_128_CCM = 1
    AES_128_GCM = 2
    AES_256_CCM = 3
    AES_256_GCM = 4


class SigningAlgorithm(enum.IntEnum):
    """Signing algorithms. [MS-SMB2 2.2.3.1.7]"""

    HMAC_SHA256 = 0
    AES_CMAC = 1
    AES_GMAC = 2


PREAUTH_SHA_512 = 1
