"""Users change their own passwords by proving the present one. [MS-SAMR 3.1.5.10]

No handle and no logon is needed: who cannot log on because the password must be changed may change it here. Wrong
proofs count like failed logons, and slow further ones. What would have to wait is refused at once, because calls run on
threads that others need. A user who has logged on from this address before does not have to wait.
"""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Callable
from typing import Any

from impacket.dcerpc.v5 import samr
from impacket.dcerpc.v5.dtypes import PRPC_UNICODE_STRING, RPC_UNICODE_STRING, ULONG, ULONGLONG
from impacket.dcerpc.v5.ndr import NDRCALL, NDRPOINTER, NDRSTRUCT, NDRUniConformantArray

from smb3server.auth import sam_passwords
from smb3server.auth.guessing import LogonRefused
from smb3server.auth.password_rules import PasswordRefused, check_new_password
from smb3server.auth.users import Account
from smb3server.process.log_lines import printable
from smb3server.rpc.dcerpc import Operation
from smb3server.rpc.lsarpc import string_of
from smb3server.rpc.ndr import operation
from smb3server.state.objects import Session
from smb3server.state.ports import AccountKeeper, AccountNotKept
from smb3server.state.server_state import ServerState
from smb3server.wire.status import NtStatus

log = logging.getLogger(__name__)

_NOBODY = os.urandom(16)
"""Stands for the NT hash if there is no account of the name: the answer and its time do not show which exist."""
EVENT = Callable[[str], None]


class _Cipher(NDRUniConformantArray):  # type: ignore[misc]
    item = "c"


class _CipherPointer(NDRPOINTER):  # type: ignore[misc]
    referent = (("Data", _Cipher),)


class EncryptedPasswordAes(NDRSTRUCT):  # type: ignore[misc]
    """SAMPR_ENCRYPTED_PASSWORD_AES. [MS-SAMR 2.2.6.32]"""

    structure = (
        ("AuthData", "64s=b''"),
        ("Salt", "16s=b''"),
        ("cbCipher", ULONG),
        ("Cipher", _CipherPointer),
        ("PBKDF2Iterations", ULONGLONG),
    )

    def getAlignment(self) -> int:
        """Return the alignment of its widest field."""
        return 8


class _ChangePasswordUser4(NDRCALL):  # type: ignore[misc]
    """Request of SamrUnicodeChangePasswordUser4. [MS-SAMR 3.1.5.10.4]"""

    opnum = 73
    structure = (
        ("ServerName", PRPC_UNICODE_STRING),
        ("UserName", RPC_UNICODE_STRING),
        ("EncryptedPassword", EncryptedPasswordAes),
    )


class _StatusResponse(NDRCALL):  # type: ignore[misc]
    structure = (("ErrorCode", ULONG),)


def aes_parts(sealed: Any) -> tuple[bytes, bytes, bytes]:
    """Return AuthData, Salt and Cipher of a SAMPR_ENCRYPTED_PASSWORD_AES."""
    cipher = sealed["Cipher"]
    return bytes(sealed["AuthData"]), bytes(sealed["Salt"]), b"".join(cipher) if not isinstance(cipher, bytes) else b""


class PasswordChanges:
    """The changes of passwords that one client asks for."""

    def __init__(self, server: ServerState, session: Session) -> None:
        self._server = server
        self._session = session

    def change2(self, request: Any) -> Any:
        """Serve SamrUnicodeChangePasswordUser2. [MS-SAMR 3.1.5.10.3]"""
        sealed, verifier = request["NewPasswordEncryptedWithOldNt"], request["OldNtOwfPasswordEncryptedWithNewNt"]
        present = sealed != b"" and verifier != b""

        def prove(old: bytes) -> str | None:
            if not present:
                return None
            password = sam_passwords.open_buffer(old, bytes(sealed["Buffer"]))
            if password is None:
                return None
            expected = sam_passwords.encrypt_hash(old, check_any(password))
            return password if hmac.compare_digest(expected, bytes(verifier["Data"])) else None

        return self._answer(string_of(request["UserName"]), prove)

    def change4(self, request: Any) -> Any:
        """Serve SamrUnicodeChangePasswordUser4. [MS-SAMR 3.1.5.10.4]"""
        sealed = request["EncryptedPassword"]
        tag, salt, cipher = aes_parts(sealed)
        iterations = int(sealed["PBKDF2Iterations"])

        def prove(old: bytes) -> str | None:
            key = sam_passwords.key_of_old_password(old, salt, iterations)
            return sam_passwords.open_aes(key, tag, salt, cipher) if key is not None else None

        return self._answer(string_of(request["UserName"]), prove)

    def change_oem(self, request: Any) -> Any:
        """Refuse SamrOemChangePasswordUser2: no LM hash is ever stored. [MS-SAMR 3.1.5.10.2]"""
        answer = _StatusResponse()
        answer["ErrorCode"] = NtStatus.WRONG_PASSWORD
        return answer

    def _answer(self, name: str, prove: Callable[[bytes], str | None]) -> Any:
        status = self._change(name, prove)
        where = self._session.connection.client_name
        if status:
            log.warning("%s: change of the password of %s refused: %s", where, printable(name), status.name)
        else:
            log.info("%s: %s has changed the password", where, printable(name))
        answer = _StatusResponse()
        answer["ErrorCode"] = status
        return answer

    def _change(self, name: str, prove: Callable[[bytes], str | None]) -> NtStatus:
        """Change the password of an account if ``prove`` finds the new one with the hash of the present one."""
        server, address = self._server, self._session.connection.client_name
        try:
            if server.guesses.delay(name, address):
                return NtStatus.ACCOUNT_LOCKED_OUT
        except LogonRefused:
            return NtStatus.ACCOUNT_LOCKED_OUT
        account = server.users.find(name)
        password = prove(_NOBODY if account is None else account.nt_hash)
        if account is None or password is None:
            server.guesses.failed(name, address)
            return NtStatus.WRONG_PASSWORD
        # From here on the client has proved that it is the user.
        server.guesses.succeeded(name, address)
        refusal = account.refusal(by_password=False)
        return refusal or self._keep(account, password)

    def _keep(self, account: Account, password: str) -> NtStatus:
        try:
            made = check_new_password(
                password, account.name, account.nt_hash, self._server.settings.min_password_length
            )
        except PasswordRefused as error:
            log.info("%s: %s", account.name, error)
            return NtStatus.PASSWORD_RESTRICTION
        return keep(self._server, lambda keeper: keeper.change(account.name, lambda user: user.with_password(made)))


def keep(server: ServerState, change: Callable[[AccountKeeper], None]) -> NtStatus:
    """Make a change of accounts last, and return its status."""
    if server.account_keeper is None:
        return NtStatus.ACCESS_DENIED
    try:
        change(server.account_keeper)
    except AccountNotKept as error:
        log.warning("%s", error)
        return NtStatus.ACCESS_DENIED
    return NtStatus.SUCCESS


def operations(server: ServerState, session: Session) -> dict[int, Operation]:
    """Return the operations by opnum."""
    changes = PasswordChanges(server, session)
    return {
        54: operation(_Unread, changes.change_oem),
        55: operation(samr.SamrUnicodeChangePasswordUser2, changes.change2),
        73: operation(_ChangePasswordUser4, changes.change4),
    }
