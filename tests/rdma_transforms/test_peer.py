"""Test the peer for RDMA transforms against published vectors, other implementations and its own rules."""

from __future__ import annotations

import subprocess

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.kbkdf import KBKDFHMAC, CounterLocation, Mode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab import transform_peer as peer
from tests.lab import transform_rules as rules
from tests.lab.examples import examples
from tests.lab.transform_peer import Chain, Cipher, Crypto, Descriptor, Keys, Kind, Refused, Signer, Status

HASH = bytes(range(64))
DESCRIPTORS = (Descriptor(0x1122334455667788, 0xA1B2C3D4, 4096), Descriptor(0, 5, 4096))
ALGORITHMS: list[tuple[Kind, Cipher | Signer]] = [
    *((Kind.ENCRYPTION, cipher) for cipher in Cipher),
    *((Kind.SIGNING, signer) for signer in Signer),
]


def both_ends(algorithm: Cipher | Signer) -> tuple[Keys, Keys]:
    """Derive the keys of a client and its server."""
    cipher = algorithm if isinstance(algorithm, Cipher) else Cipher.AES_128_GCM
    session, full = bytes(range(16)), bytes(range(32))
    return (
        peer.derive_keys(session, full, HASH, cipher, server=False),
        peer.derive_keys(session, full, HASH, cipher, server=True),
    )


def test_the_bytes_of_a_chain() -> None:
    """Lay out a GCM chain by hand: 16 + 8 + 16 + 12 = 52, padded to 56 [MS-SMB2 2.2.43, 2.2.43.1]."""
    chain = Chain(2, (Crypto(1, b"S" * 16, b"N" * 12),), DESCRIPTORS[:1])
    expected = (
        "3800 1000 02000000 0100 0000 00000000"
        + " 0100 1000 0c00 0000 " + "53" * 16 + "4e" * 12 + "00000000"
        + " 8877665544332211 d4c3b2a1 00100000"
    )  # fmt: skip
    assert peer.encode_chain(chain) == bytes.fromhex(expected)
    assert peer.decode_chain(peer.encode_chain(chain)) == chain


def test_the_bytes_of_a_chain_in_a_response() -> None:
    """Leave offset and length 0 where there is no channel [MS-SMB2 2.2.43, 3.3.5.12]."""
    expected = "0000 0000 00000000 0100 0000 00000000 0200 1000 0000 0000" + "53" * 16
    assert peer.encode_chain(Chain(0, (Crypto(2, b"S" * 16, b""),))) == bytes.fromhex(expected)


def test_what_receivers_must_tolerate() -> None:
    """Ignore reserved fields, bytes behind the descriptors, and padding that a response lacks [MS-SMB2 2.2.43]."""
    chain = Chain(1, (Crypto(2, b"S" * 16, b""),), DESCRIPTORS)
    data = bytearray(peer.encode_chain(chain) + b"trailing")
    data[10:16], data[22:24] = b"\xff" * 6, b"\xff" * 2
    assert peer.decode_chain(bytes(data)) == chain
    alone = Chain(0, (Crypto(1, b"S" * 16, b"N" * 11),))
    assert len(peer.encode_chain(alone)) == 56
    assert peer.decode_chain(peer.encode_chain(alone)[:51]) == alone


def test_capabilities() -> None:
    """Lay out the context by hand, and refuse what is too short or counts none [MS-SMB2 2.2.3.1.6, 3.3.5.4]."""
    data = bytes.fromhex("0200 0000 00000000 0100 0200")
    assert peer.encode_capabilities([1, 2]) == data
    assert peer.decode_capabilities(data) == [1, 2]
    for bad in (b"", data[:7], data[:-1], bytes(8)):
        with pytest.raises(Refused) as refused:
            peer.decode_capabilities(bad)
        assert refused.value.status == Status.INVALID_PARAMETER
    assert peer.answer_capabilities([2, 1, 7], [1, 2]) == [2, 1]
    assert peer.answer_capabilities([7, 0], [0, 1, 2]) == [0]


kinds, short = st.sampled_from([1, 2]), st.binary(max_size=20)
cryptos = st.builds(Crypto, kinds, short, short)
u32 = st.integers(0, 2**32 - 1)
descriptors = st.builds(Descriptor, st.integers(0, 2**64 - 1), u32, u32)


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(cryptos, min_size=1, max_size=3), st.lists(descriptors, max_size=4))
def test_each_chain_comes_back(transforms: list[Crypto], found: list[Descriptor]) -> None:
    """Take apart what was built, with any number of transforms and descriptors [MS-SMB2 2.2.43]."""
    chain = Chain(1 if found else 0, tuple(transforms), tuple(found))
    assert peer.decode_chain(peer.encode_chain(chain)) == chain


@settings(max_examples=examples(50), deadline=None)
@given(st.binary(max_size=120))
def test_no_bytes_break_the_decoder(data: bytes) -> None:
    """Answer anything with a chain or a refusal."""
    try:
        assert peer.decode_chain(data).transforms
    except Refused as refused:
        assert refused.status == Status.INVALID_PARAMETER


@pytest.mark.parametrize(("kind", "algorithm"), ALGORITHMS)
@settings(max_examples=10, deadline=None)
@given(payload=st.binary(min_size=1, max_size=200), counter=st.integers(0, 2**64 - 1), to_server=st.booleans())
def test_each_payload_comes_back(
    kind: Kind, algorithm: Cipher | Signer, payload: bytes, counter: int, to_server: bool
) -> None:
    """Protect at one end, restore at the other, and refuse each changed bit [MS-SMB2 3.3.5.13]."""
    client, server = both_ends(algorithm)
    sender, receiver = (client, server) if to_server else (server, client)
    nonce = peer.build_nonce(kind, algorithm, counter, server=not to_server)
    data, one = peer.protect(payload, sender, kind, algorithm, nonce)
    assert len(data) == len(payload)
    assert len(one.signature) == 16
    assert peer.unprotect(data, receiver, one, algorithm) == payload
    status = Status.AUTH_TAG_MISMATCH if kind is Kind.ENCRYPTION else Status.INVALID_SIGNATURE
    flipped = Crypto(one.kind, one.signature, bytes([one.nonce[0] ^ 1]) + one.nonce[1:] if one.nonce else b"x")
    wrong = [
        (bytes([data[0] ^ 1]) + data[1:], one),
        (data, Crypto(one.kind, one.signature[:-1] + bytes([one.signature[-1] ^ 1]), one.nonce)),
        (data, Crypto(one.kind, one.signature[:-1], one.nonce)),
        (data, flipped),
    ]
    for changed, transform in wrong:
        with pytest.raises(Refused) as refused:
            peer.unprotect(changed, receiver, transform, algorithm)
        assert refused.value.status == status


def test_each_direction_has_its_key() -> None:
    """Send with one key and receive with the other, crosswise; sign with the same one [MS-SMB2 3.3.5.5.3]."""
    client, server = both_ends(Cipher.AES_256_GCM)
    assert (client.encryption, client.decryption) == (server.decryption, server.encryption)
    assert client.encryption != client.decryption
    assert client.signing == server.signing
    assert (len(client.encryption), len(client.signing)) == (32, 16)


@pytest.mark.parametrize("bits", [128, 256])
@pytest.mark.parametrize("label", [b"SMBSigningKey", b"SMBC2SCipherKey", b"SMBS2CCipherKey"])
def test_keys_are_those_of_another_implementation(label: bytes, bits: int) -> None:
    """Derive what OpenSSL derives [SP800-108 5.1]; the text gives the labels with their null byte."""
    key = bytes(range(bits // 8))
    other = KBKDFHMAC(
        SHA256(), Mode.CounterMode, bits // 8, 4, 4, CounterLocation.BeforeFixed, label + b"\0", HASH, None
    )
    assert peer.derive(key, label + b"\0", HASH, bits) == other.derive(key)


def test_cmac_of_the_rfc() -> None:
    """Sign the 16- and the 40-byte example [RFC 4493 4]."""
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    text = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46a35ce411")
    assert peer.sign(text[:16], key, Signer.AES_CMAC, b"").hex() == "070a16b46b4d4144f79bdd9dd04a287c"
    assert peer.sign(text, key, Signer.AES_CMAC, b"").hex() == "dfa66747de9ae63030ca32611497c827"


def test_hmac_of_the_rfc() -> None:
    """Keep the first 16 of 32 bytes [RFC 4231 4.2, MS-SMB2 3.1.5.1]."""
    found = peer.sign(b"Hi There", b"\x0b" * 20, Signer.HMAC_SHA256, b"")
    assert found.hex() == "b0344c61d8db38535ca8afceaf0bf12b"


def test_gcm_of_its_authors() -> None:
    """Encrypt 16 zero bytes with a zero key, of 16 and of 32 bytes: cases 2 and 14 of the GCM submission."""
    for size, cipher, data, tag in (
        (16, Cipher.AES_128_GCM, "0388dace60b6a392f328c2b971b2fe78", "ab6e47d42cec13bdf53a67b21257bddf"),
        (32, Cipher.AES_256_GCM, "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"),
    ):
        keys = Keys(b"", bytes(size), b"")
        found, one = peer.protect(bytes(16), keys, Kind.ENCRYPTION, cipher, bytes(12))
        assert (found.hex(), one.signature.hex()) == (data, tag)


@pytest.mark.parametrize("cipher", [Cipher.AES_128_CCM, Cipher.AES_256_CCM])
def test_ccm_by_its_definition(cipher: Cipher) -> None:
    """Build CCM from single AES blocks of the openssl command, with a nonce of 11 bytes [RFC 3610 2.2, 2.3]."""
    size = 16 if cipher is Cipher.AES_128_CCM else 32
    key, nonce, payload = bytes(range(size)), bytes(range(11)), b"sixteen byte txt"
    length = (16).to_bytes(4, "big")
    # Flags of B0: no associated data, a tag of 16 bytes, a length field of 15 - 11 = 4 bytes.
    first = bytes([(16 - 2) // 2 << 3 | 3]) + nonce + length
    name = f"-aes-{size * 8}-"
    mac = openssl(name + "cbc", key, first + payload, "-iv", bytes(16).hex())[-16:]
    stream = openssl(name + "ecb", key, b"".join(bytes([3]) + nonce + bytes([0, 0, 0, i]) for i in (0, 1)))
    found, one = peer.protect(payload, Keys(b"", key, b""), Kind.ENCRYPTION, cipher, nonce)
    assert found == bytes(a ^ b for a, b in zip(payload, stream[16:], strict=True))
    assert one.signature == bytes(a ^ b for a, b in zip(mac, stream[:16], strict=True))


def test_gmac_by_openssl() -> None:
    """Sign what the openssl command signs [RFC 4543 3]."""
    key, nonce, payload = bytes(range(16)), bytes(range(12)), b"data that is only signed"
    command = ["openssl", "mac", "-cipher", "AES-128-GCM", "-macopt", f"hexkey:{key.hex()}"]
    command += ["-macopt", f"hexiv:{nonce.hex()}", "GMAC"]
    found = subprocess.run(command, input=payload, capture_output=True, check=True).stdout
    assert peer.sign(payload, key, Signer.AES_GMAC, nonce) == bytes.fromhex(found.decode())


def openssl(cipher: str, key: bytes, data: bytes, *more: str) -> bytes:
    """Encrypt whole blocks with the openssl command."""
    command = ["openssl", "enc", cipher, "-nopad", "-K", key.hex(), *more]
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def test_nonces_of_payloads_are_none_of_messages() -> None:
    """Set the bit that 3.1.4.1 has zero in the nonce of each message [MS-SMB2 2.2.43.1, 3.1.4.1]."""
    client = peer.build_nonce(Kind.SIGNING, Signer.AES_GMAC, 7, server=False)
    server = peer.build_nonce(Kind.SIGNING, Signer.AES_GMAC, 7, server=True)
    assert client.hex() == "070000000000000000000080"
    assert server.hex() == "070000000000000001000080"


@pytest.mark.parametrize("kind", Kind)
def test_a_good_message_passes(kind: Kind) -> None:
    """Accept what the rules start from [MS-SMB2 3.2.5.11, 3.3.5.13]."""
    assert rules.judge_write(good_write(kind)).transforms[0].kind == kind
    assert rules.judge_read(good_read(kind)).kind == kind


@pytest.mark.parametrize("rule", rules.WRITE_RULES, ids=lambda rule: rule.name)
def test_each_rule_of_write(rule: rules.Rule[rules.Write]) -> None:
    """Refuse the WRITE that breaks one rule [MS-SMB2 3.3.5.13]."""
    with pytest.raises(Refused) as refused:
        rules.judge_write(rule.break_it(good_write(rule.kind)))
    assert refused.value.status == rule.status


@pytest.mark.parametrize("rule", rules.READ_RULES, ids=lambda rule: rule.name)
def test_each_rule_of_read(rule: rules.Rule[rules.Read]) -> None:
    """Refuse the READ response that breaks one rule [MS-SMB2 3.2.5.11]."""
    with pytest.raises(Refused) as refused:
        rules.judge_read(rule.break_it(good_read(rule.kind)))
    assert refused.value.status == rule.status


def good_write(kind: Kind) -> rules.Write:
    """Return a WRITE that is encrypted, or signed, and nothing else."""
    encrypted = kind is Kind.ENCRYPTION
    return rules.Write(rules.good_chain(kind, descriptors=DESCRIPTORS), encrypted, not encrypted)


def good_read(kind: Kind) -> rules.Read:
    """Return a READ response that is encrypted, or not."""
    return rules.Read(rules.good_chain(kind), kind is Kind.ENCRYPTION)


def test_the_size_of_a_payload() -> None:
    """Refuse more and less than RemainingBytes [MS-SMB2 3.3.5.13]."""
    assert peer.check_size(b"abc", 3) == b"abc"
    for remaining in (2, 4):
        with pytest.raises(Refused) as refused:
            peer.check_size(b"abc", remaining)
        assert refused.value.status == Status.BAD_DATA


@pytest.mark.parametrize("need", rules.NEEDS, ids=repr)
def test_what_is_needed(need: rules.Need) -> None:
    """Encrypt with encrypted requests, sign with signed ones, and never fall back to clear [MS-SMB2 3.3.5.12]."""
    assert rules.way_of_need(need) is need.way
