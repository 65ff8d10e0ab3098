"""The machine account's files: secret, keytab, and the change of the password."""

from __future__ import annotations

import importlib
import os
import stat
from pathlib import Path

import pytest

from smb3server.auth.users import nt_hash
from smb3server.domain import keytab
from smb3server.domain.keytab import Version
from smb3server.domain.machine import Account, Machine, MachineError

FIRST = Version("first password", 3, 1_700_000_000)
ACCOUNT = Account("CONTOSO.COM", "CONTOSO", "FILES", "files.contoso.com", "S-1-5-21-1-2-3", (FIRST,))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    found = Machine(tmp_path / "domain.secret", tmp_path / "domain.keytab")
    found.write(ACCOUNT)
    return found


def numbers(tmp_path: Path) -> set[int]:
    return keytab.numbers((tmp_path / "domain.keytab").read_bytes())


def test_files_are_for_their_owner_alone(machine: Machine, tmp_path: Path) -> None:
    assert machine.account() == ACCOUNT
    assert [stat.S_IMODE(path.stat().st_mode) for path in sorted(tmp_path.iterdir())] == [0o600, 0o600]


def test_the_systems_library_reads_the_keytab(machine: Machine, tmp_path: Path) -> None:
    krb5 = pytest.importorskip("krb5", reason="needs the part kerberos")
    context = krb5.init_context()
    entries = list(krb5.kt_resolve(context, str(tmp_path / "domain.keytab").encode()))
    found = {
        (krb5.unparse_name_flags(context, entry.principal).decode(), entry.kvno, entry.key.enctype) for entry in entries
    }
    assert ("cifs/files.contoso.com@CONTOSO.COM", 3, 18) in found
    assert ("FILES$@CONTOSO.COM", 3, 17) in found
    salt = b"CONTOSO.COMhostfiles.contoso.com"
    for entry in entries:
        made = krb5.c_string_to_key(context, entry.key.enctype, FIRST.password.encode(), salt)
        assert bytes(made.data) == bytes(entry.key.data)


def test_numbers_above_a_byte_are_read(tmp_path: Path) -> None:
    data = keytab.pack("CONTOSO.COM", "FILES", "files.contoso.com", [FIRST._replace(number=300)])
    assert keytab.numbers(data) == keytab.numbers(data, "host") == {300}
    assert keytab.numbers(data, "http") == set()


@pytest.mark.parametrize("cut", range(1, 80, 7))
def test_damaged_keytabs_are_refused(cut: int) -> None:
    data = keytab.pack("CONTOSO.COM", "FILES", "files.contoso.com", [FIRST])
    with pytest.raises(ValueError, match="keytab"):
        keytab.numbers(data[: len(data) - cut])
    with pytest.raises(ValueError, match="not a keytab"):
        keytab.numbers(data[2:])


def test_a_change_keeps_the_last_key(machine: Machine, tmp_path: Path) -> None:
    set_to: list[str] = []

    def controller(password: str) -> None:
        # Both files have the new password before the controller has it.
        assert machine.account().pending
        assert numbers(tmp_path) == {3, 4}
        set_to.append(password)

    assert machine.rotate(lambda: "", controller)
    account = machine.account()
    assert [one.password for one in account.versions] == [*set_to, FIRST.password]
    assert not account.pending
    assert machine.rotate(lambda: "", set_to.append)
    assert numbers(tmp_path) == {4, 5}
    assert len(set(set_to)) == 2


def test_it_is_changed_when_it_is_old_and_by_one_node_alone(machine: Machine, tmp_path: Path) -> None:
    calls: list[str] = []
    other_node = Machine(tmp_path / "domain.secret", tmp_path / "domain.keytab")
    assert machine.due(86400)
    assert other_node.due(86400)
    assert not machine.due(0)
    assert machine.rotate(lambda: "", calls.append, 86400)
    assert not other_node.rotate(lambda: "", calls.append, 86400)
    assert len(calls) == 1


@pytest.mark.parametrize("was_set", [True, False])
def test_a_change_whose_end_is_not_known_is_settled(machine: Machine, tmp_path: Path, was_set: bool) -> None:
    domain = FIRST.password

    def lost(password: str) -> None:
        nonlocal domain
        domain = password if was_set else domain
        raise ConnectionResetError("the answer is lost")

    with pytest.raises(ConnectionResetError):
        machine.rotate(lambda: "", lost)
    # Whatever has happened, the member has the key and the password that count.
    assert nt_hash(domain) in [secret.nt_hash for secret in machine.secrets()]
    assert machine.due(0)
    later: list[str] = []
    assert machine.rotate(lambda: nt_hash(domain).hex(), later.append)
    latest, before = machine.account().versions[:2]
    assert (latest.password, before.password) == (later[0], domain)
    # The domain counts a version for each password that it has taken.
    assert latest.number == (5 if was_set else 4)
    assert numbers(tmp_path) == {latest.number, latest.number - 1}


def test_an_account_that_nobody_accepts_is_not_changed(machine: Machine) -> None:
    with pytest.raises(ConnectionResetError):
        machine.rotate(lambda: "", _lost)
    with pytest.raises(MachineError, match="join --reuse"):
        machine.rotate(lambda: "00" * 16, _lost)
    assert machine.account().pending


def _lost(password: str) -> None:
    raise ConnectionResetError("the answer is lost")


def test_files_that_others_may_read_are_refused(machine: Machine, tmp_path: Path) -> None:
    os.chmod(tmp_path / "domain.secret", 0o644)
    with pytest.raises(MachineError, match="others may read"):
        Machine(tmp_path / "domain.secret", tmp_path / "domain.keytab").account()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"null", b'{"format": 2}', b"\xff\xfe"])
def test_damaged_files_are_refused(machine: Machine, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "domain.secret").write_bytes(content)
    with pytest.raises(MachineError, match="damaged"):
        machine.account()
    with pytest.raises(ValueError, match="damaged"):
        machine.secrets()


def test_without_a_file_the_remedy_is_to_join(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="smb3server domain join"):
        Machine(tmp_path / "none", tmp_path / "keytab").account()


def test_leaving_removes_both(machine: Machine, tmp_path: Path) -> None:
    machine.remove()
    machine.remove()
    assert list(tmp_path.iterdir()) == []


def test_keys_are_those_of_the_library() -> None:
    crypto = importlib.import_module("impacket.krb5.crypto")
    salt = keytab.salt("contoso.com", "FILES")
    assert salt == "CONTOSO.COMhostfiles.contoso.com"
    assert keytab.key(18, "pw", salt) == crypto.string_to_key(18, b"pw", salt.encode()).contents
