"""What this project uses of pyspnego's private names: a release that changes them fails here, not at a logon."""

from __future__ import annotations

import ast
import hmac
import importlib.metadata
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spnego._context import ContextProxy, GSSMech
from spnego._ntlm import NTLMProxy
from spnego._ntlm_raw import crypto, security
from spnego._ntlm_raw.messages import NegotiateFlags
from spnego._spnego import NegTokenInit, unpack_token

import smb3server.auth.pyspnego
from smb3server.auth.ntlm_logon import NtlmLogon
from smb3server.auth.pyspnego import NtlmContext, first_signature, nt_hash, pack_hint
from smb3server.auth.users import UserDatabase

ROOT = Path(smb3server.auth.pyspnego.__file__).parents[2]
ONLY_FOR_INITIATORS = {"_lm", "_nt_v1", "_nt_v2"}


def private_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "spnego":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "spnego")


def test_one_module_knows_private_names() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for package in ("smb3server", "smbdirect", "witness")
        for path in (ROOT / package).rglob("*.py")
        for name in private_names(ast.parse(path.read_text()))
        if "._" in name
    }
    assert found == {"smb3server/auth/pyspnego.py"}


def test_the_version_is_one_that_was_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["kerberos"]]
    bounds = {re.sub(r"\[.*\]", "", entry) for entry in wanted if entry.startswith("pyspnego")}
    assert bounds == {"pyspnego>=0.11.2,<0.13"}
    version = importlib.metadata.version("pyspnego").split(".")
    assert (0, 11, 2) <= tuple(map(int, version[:3])) < (0, 13)


@pytest.mark.parametrize(
    ("called", "parameters"),
    [
        (
            ContextProxy.__init__,
            "self credentials hostname service channel_bindings context_req usage protocol options",
        ),
        (NTLMProxy._reset_ntlm_crypto_state, "self outgoing"),
        (NTLMProxy._step_accept_negotiate, "self token"),
        (NTLMProxy._step_accept_authenticate, "self token channel_bindings"),
        (crypto.ntowfv1, "password"),
        (crypto.rc4init, "k"),
        (crypto.rc4k, "k d"),
        (crypto.sealkey, "flags session_key usage"),
        (crypto.signkey, "flags session_key usage"),
        (security.sign, "flags handle signing_key seq_num b_data"),
    ],
)
def test_signatures_are_those_that_are_called(called: Any, parameters: str) -> None:
    assert list(inspect.signature(called).parameters) == parameters.split()


def test_the_ntlm_context_has_every_attribute_of_the_librarys() -> None:
    """It does not call the constructor that sets them."""
    tree = ast.parse(inspect.getsource(NTLMProxy))
    (constructor,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    wanted = {
        node.attr
        for node in ast.walk(constructor)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    made = NtlmContext(NtlmLogon(UserDatabase(), "SERVER", False, False))
    mangled = {name.replace("__", "_NTLMProxy__") if name.startswith("__") else name for name in wanted}
    assert mangled - ONLY_FOR_INITIATORS <= set(vars(made)) and mangled >= ONLY_FOR_INITIATORS


def test_the_kerberos_context_takes_a_credential() -> None:
    gss = pytest.importorskip("spnego._gss")
    pytest.importorskip("gssapi")
    assert 'kwargs.get("_gssapi_credential"' in inspect.getsource(gss.GSSAPIProxy.__init__)
    assert {"_context", "_is_wrapped"} <= set(re.findall(r"self\.(\w+)", inspect.getsource(gss.GSSAPIProxy)))


def test_known_values() -> None:
    """MS-NLMP 4.2.2.1.2, and the fixed parts of a signature (2.2.2.9.2)."""
    assert nt_hash("Password").hex() == "a4f49c406510bdcab6824ee7c30fd852"
    flags, key = 0xE28A8233, bytes([0x55] * 16)
    made = first_signature(flags, key, "initiate", "Plaintext".encode("utf-16-le"))
    assert len(made) == 16 and made[:4] == b"\x01\0\0\0" and made[12:] == bytes(4)


def test_the_hint_offers_what_is_allowed() -> None:
    oids = {mech: mech.value for mech in (GSSMech._ms_kerberos, GSSMech.kerberos, GSSMech.ntlm)}
    for kerberos, ntlm, expected in ((True, True, list(oids.values())), (False, True, [GSSMech.ntlm.value])):
        read = unpack_token(pack_hint(kerberos, ntlm))
        assert isinstance(read, NegTokenInit) and read.mech_types == expected


@pytest.mark.parametrize("exchanged", [False, True])
def test_with_always_sign_alone_a_mech_list_mic_is_true(exchanged: bool) -> None:
    """MS-NLMP 3.4.4.2, MS-SPNG 3.3.5.1: not the signature 01 00...00 of messages that nobody signs."""
    flags = int(NegotiateFlags.always_sign | NegotiateFlags.extended_session_security | NegotiateFlags.key_128)
    if exchanged:
        flags |= int(NegotiateFlags.key_exch)
    key = bytes(range(16))
    found = first_signature(flags, key, "initiate", b"mechanisms")
    checksum = hmac.digest(crypto.signkey(flags, key, "initiate"), bytes(4) + b"mechanisms", "md5")[:8]
    if exchanged:
        checksum = crypto.rc4init(crypto.sealkey(flags, key, "initiate")).update(checksum)
    assert found == b"\1\0\0\0" + checksum + bytes(4)
