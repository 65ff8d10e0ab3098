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
from impacket.dcerpc.v5.ndr import NDRCALL, NDRPOINTER, NDRSTRUCT, NDRUniConformantArray, NDRUniFixedArray

from smb3server.auth import sam_passwords
from smb3server.auth.guessing import LogonRefused
from smb3server.auth.password_rules import PasswordRefused, check_new_password
from smb3server.auth.users import Account, nt_hash
from smb3server.rpc.dcerpc import Operation
from smb3server.rpc.lsa_structures import string_of
from smb3server.rpc.lsarpc import Unread
from smb3server.rpc.ndr import declare, operation
from smb3server.rpc.samr_context import Context, answer_status
from smb3server.wire.status import NtStatus

log = logging.getLogger(__name__)

ITERATIONS_OF_A_GUESS = 100_000
"""Iterations of PBKDF2 that count as one failed logon: the specification permits a client a million of them."""
_NOBODY = os.urandom(16)
"""Stands for the NT hash if there is no account of the name: the answer and its time do not show which exist."""


_Bytes = declare(NDRUniConformantArray, item="c")
_BytesPointer = declare(NDRPOINTER, referent=(("Data", _Bytes),))


class _Tag(NDRUniFixedArray):  # type: ignore[misc]
    align = 1

    def getDataLen(self, data: bytes, offset: int = 0) -> int:
        """Return the size in bytes."""
        return 64


class _Salt(_Tag):
    def getDataLen(self, data: bytes, offset: int = 0) -> int:
        """Return the size in bytes."""
        return 16


EncryptedPasswordAes = declare(
    NDRSTRUCT,
    structure=(
        ("AuthData", _Tag),
        ("Salt", _Salt),
        ("cbCipher", ULONG),
        ("Cipher", _BytesPointer),
        ("PBKDF2Iterations", ULONGLONG),
    ),
)
"""SAMPR_ENCRYPTED_PASSWORD_AES. [MS-SAMR 2.2.6.32]"""


class _ChangePasswordUser4(NDRCALL):  # type: ignore[misc]
    """Request of SamrUnicodeChangePasswordUser4. [MS-SAMR 3.1.5.10.4]"""

    opnum = 73
    structure = (
        ("ServerName", PRPC_UNICODE_STRING),
        ("UserName", RPC_UNICODE_STRING),
        ("EncryptedPassword", EncryptedPasswordAes),
    )


def aes_parts(sealed: Any) -> tuple[bytes, bytes, bytes]:
    """Return AuthData, Salt and Cipher of a SAMPR_ENCRYPTED_PASSWORD_AES."""
    return bytes(sealed["AuthData"]), bytes(sealed["Salt"]), b"".join(sealed["Cipher"])


class _PasswordChanges:
    def __init__(self, context: Context) -> None:
        self._context = context

    def change2(self, request: Any) -> Any:
        """Serve SamrUnicodeChangePasswordUser2. [MS-SAMR 3.1.5.10.3]"""
        sealed, verifier = request["NewPasswordEncryptedWithOldNt"], request["OldNtOwfPasswordEncryptedWithNewNt"]

        def prove(old: bytes) -> str | None:
            # impacket decodes a NULL pointer to b"", and a structure with one field to the field.
            if isinstance(sealed, bytes) or verifier == b"":
                return None
            password = sam_passwords.open_buffer(old, bytes(sealed["Buffer"]))
            if password is None:
                return None
            expected = sam_passwords.encrypt_hash(old, nt_hash(password))
            return password if hmac.compare_digest(expected, bytes(verifier)) else None

        return self._answer(string_of(request["UserName"]), prove)

    def change4(self, request: Any) -> Any:
        """Serve SamrUnicodeChangePasswordUser4. [MS-SAMR 3.1.5.10.4]"""
        sealed = request["EncryptedPassword"]
        tag, salt, cipher = aes_parts(sealed)
        iterations = int(sealed["PBKDF2Iterations"])

        def prove(old: bytes) -> str | None:
            key = sam_passwords.key_of_old_password(old, salt, iterations)
            return sam_passwords.open_aes(key, tag, salt, cipher) if key is not None else None

        # The client chooses how much work a guess is.
        return self._answer(string_of(request["UserName"]), prove, 1 + iterations // ITERATIONS_OF_A_GUESS)

    @staticmethod
    def change_oem(request: Any) -> Any:
        """Refuse SamrOemChangePasswordUser2: no LM hash is ever stored. [MS-SAMR 3.1.5.10.2]"""
        return answer_status(NtStatus.WRONG_PASSWORD)

    def _answer(self, name: str, prove: Callable[[bytes], str | None], weight: int = 1) -> Any:
        status = self._change(name, prove, weight)
        if status:
            log.warning("%s: change of %s's password refused: STATUS_%s", self._context.address, name, status.name)
        return answer_status(status)

    def _change(self, name: str, prove: Callable[[bytes], str | None], weight: int) -> NtStatus:
        """Change the password of an account if ``prove`` finds the new one with the hash of the present one.

        A wrong one counts as ``weight`` failed logons."""
        context = self._context
        guesses, address = context.server.guesses, context.address
        # Calls run on threads, several at a time: each is counted before it is verified.
        try:
            delay = guesses.begin(name, address, weight)
        except LogonRefused:
            return NtStatus.ACCOUNT_LOCKED_OUT
        if delay:
            guesses.withdraw(name, address, weight)
            return NtStatus.ACCOUNT_LOCKED_OUT
        account = context.accounts.find(name)
        password = prove(_NOBODY if account is None else account.nt_hash)
        if account is None or password is None:
            return NtStatus.WRONG_PASSWORD
        # From here on the client has proved that it is the user.
        guesses.proved(name, address, weight)
        return account.refusal(by_password=False) or self._keep(account, password)

    def _keep(self, account: Account, password: str) -> NtStatus:
        context = self._context
        least = context.server.settings.min_password_length
        try:
            made = check_new_password(password, account.name, account.nt_hash, least)
        except PasswordRefused as error:
            log.info("%s: new password of %s refused: %s", context.address, account.name, error)
            return NtStatus.PASSWORD_RESTRICTION
        return context.keep(
            f"new password of {account.name}",
            lambda keeper: keeper.change(account.name, lambda user: user.with_password(made)),
        )


def operations(context: Context) -> dict[int, Operation]:
    """Return the operations by opnum."""
    changes = _PasswordChanges(context)
    return {
        54: operation(Unread, changes.change_oem),
        55: operation(samr.SamrUnicodeChangePasswordUser2, changes.change2),
        73: operation(_ChangePasswordUser4, changes.change4),
    }
