"""etcd behind TLS and users: who gets in, what becomes of tokens that expire, and what those who do not are told."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from smb3server.net.store_access import (
    AccessError,
    EtcdAccess,
    StoreAccess,
    check,
    etcd_access,
    load_password,
    load_tls,
    warnings,
)
from smb3server.net.store_url import is_exposed, parse_url
from smb3server.persistence import etcd
from smb3server.persistence.etcd import EtcdStore, open_store
from smb3server.persistence.etcd_access import AccessRefused
from smb3server.persistence.store import DeletePrefix, Put, Store, StoreError
from tests.lab.etcd import PASSWORD, PREFIX, TOKEN_TTL, USER, SecuredEtcd
from tools.cluster.certificates import Authority

EXPIRED = TOKEN_TTL + 3.0
"""Seconds after which a token that nobody used is no good."""


def run(secured: SecuredEtcd, body: Callable[[Store], Awaitable[None]], access: EtcdAccess | None = None) -> None:
    async def main() -> None:
        store = EtcdStore(parse_url(secured.url), access=access or etcd_access(secured.url, secured.access))
        try:
            async with asyncio.timeout(60):
                await body(store)
        finally:
            await store.close()

    asyncio.run(main())


def expire(secured: SecuredEtcd) -> None:
    """All tokens: a member that starts again knows none."""
    secured.kill(0)
    secured.start(0)


def test_everything_that_a_node_does_works_with_rights_to_its_prefix_only(secured: SecuredEtcd) -> None:
    async def body(store: Store) -> None:
        lease = await store.grant(30)
        version = await store.commit([Put(f"{PREFIX}t/a", b"1", lease), Put(f"{PREFIX}t/b", b"2")])
        assert await store.version(PREFIX) == version
        assert [entry.value for entry in await store.scan(f"{PREFIX}t/")] == [b"1", b"2"]
        renewer = store.renewer()
        await asyncio.to_thread(renewer.renew, lease, 5.0)
        renewer.close()
        assert await store.time_left(lease) > 25
        async for change in store.watch(PREFIX, version - 1):
            assert change.value == b"1"
            break
        await store.revoke(lease)
        await store.commit([DeletePrefix(f"{PREFIX}t/")])
        with pytest.raises(AccessRefused, match=r"permission denied.*remedy.*grant-permission"):
            await store.commit([Put("elsewhere", b"")])
        with pytest.raises(AccessRefused, match="permission denied"):
            await store.scan("other/")

    run(secured, body)


def test_tokens_that_expire_are_replaced(secured: SecuredEtcd) -> None:
    """Before reads, transactions and renewals; many requests at once bring one new token."""

    async def body(store: Store) -> None:
        await store.commit([Put(f"{PREFIX}t/a", b"1")])
        await asyncio.sleep(EXPIRED)
        assert len(await asyncio.gather(*(store.get(f"{PREFIX}t/a") for _ in range(10)))) == 10
        await asyncio.sleep(EXPIRED)
        await store.commit([Put(f"{PREFIX}t/a", b"2")])
        lease = await store.grant(60)
        renewer = store.renewer()
        await asyncio.to_thread(expire, secured)
        await store.commit([DeletePrefix(f"{PREFIX}t/")])
        await asyncio.to_thread(renewer.renew, lease, 10.0)
        renewer.close()

    run(secured, body)


def test_watches_outlive_tokens(secured: SecuredEtcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd, "WATCH_SILENCE", 1.0)

    async def body(store: Store) -> None:
        start = await store.commit([Put(f"{PREFIX}t/0", b"0")])
        seen: list[bytes | None] = []

        async def watch() -> None:
            async for change in store.watch(f"{PREFIX}t/", start):
                seen.append(change.value)

        watching = asyncio.ensure_future(watch())
        for number in range(1, 3):
            # Longer than a watch waits for news before it connects again, with whatever token it has then.
            await asyncio.sleep(etcd.WATCH_SILENCE + EXPIRED)
            secured.ask_put(f"{PREFIX}t/{number}", b"%d" % number)
            async with asyncio.timeout(10):
                while len(seen) < number:
                    await asyncio.sleep(0.05)
        assert seen == [b"1", b"2"] and not watching.done()
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    run(secured, body)


@pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("nobody", PASSWORD)])
def test_a_wrong_password_is_said(secured: SecuredEtcd, user: str, password: str) -> None:
    async def body(store: Store) -> None:
        for action in (store.get("k"), store.commit([Put("k", b"")])):
            with pytest.raises(AccessRefused, match=r"authentication failed.*remedy.*password_file"):
                await action

    run(secured, body, EtcdAccess(etcd_access(secured.url, secured.access).tls, user, password))


def test_no_user_is_said(secured: SecuredEtcd) -> None:
    async def body(store: Store) -> None:
        with pytest.raises(AccessRefused, match=r"user name is empty.*remedy.*password_file"):
            await store.get(f"{PREFIX}k")

    run(secured, body, EtcdAccess(etcd_access(secured.url, secured.access).tls))


def test_a_role_that_is_revoked_is_said_and_its_return_noticed(secured: SecuredEtcd) -> None:
    async def body(store: Store) -> None:
        await store.get(f"{PREFIX}k")
        await asyncio.to_thread(secured.as_root, "auth/user/revoke", {"name": USER, "role": USER})
        try:
            with pytest.raises(AccessRefused, match=r"permission denied.*remedy"):
                await store.get(f"{PREFIX}k")
            with pytest.raises(AccessRefused, match=r"permission denied.*remedy"):
                async for _ in store.watch(PREFIX, 1):
                    pytest.fail("saw something")
        finally:
            await asyncio.to_thread(secured.as_root, "auth/user/grant", {"user": USER, "role": USER})
        await store.get(f"{PREFIX}k")

    run(secured, body)


def refusal(secured: SecuredEtcd, access: StoreAccess, url: str = "") -> str:
    """What both who talk to etcd say of this access: the event loop's, and the renewal thread's."""
    found: list[str] = []

    async def body() -> None:
        endpoints = parse_url(url or secured.url)
        store = EtcdStore(endpoints, timeout=1.0, access=etcd_access(url or secured.url, access))
        try:
            for action in (
                store.get(f"{PREFIX}k"),
                store.commit([Put(f"{PREFIX}k", b"")]),
                asyncio.to_thread(store.renewer().renew, 1, 1.0),
            ):
                with pytest.raises(StoreError) as caught:
                    await action
                found.append(str(caught.value))
        finally:
            await store.close()

    asyncio.run(body())
    return "\n".join(found)


def test_the_certificate_of_etcd_is_checked(secured: SecuredEtcd, tmp_path: Path) -> None:
    access = secured.access
    access.ca = Authority(tmp_path, "other").ca
    said = refusal(secured, access)
    assert said.count("remedy: `ca` must be the authority") == 3, said
    name = secured.url.replace("127.0.0.1", "localhost")
    said = refusal(secured, secured.access, name)
    assert said.count("remedy: write the host as it is in the certificate of etcd") == 3, said


def test_etcd_refuses_other_certificates(secured: SecuredEtcd, tmp_path: Path) -> None:
    access = secured.access
    access.cert, access.key = Authority(tmp_path, "other").issue("client")
    assert "etcd refuses this node's certificate" in refusal(secured, access)
    access.cert = access.key = None
    assert "etcd refuses this node's certificate" in refusal(secured, access)
    access.cert, access.key = secured.authority.named("named")
    assert "a subject that has an organization (O) and no CN" in refusal(secured, access)


def test_tls_and_its_absence_are_told_apart(secured: SecuredEtcd) -> None:
    health = secured.url.partition("://")[2].replace(secured.members[0].client, secured.plain_address)
    assert "no TLS there" in refusal(secured, secured.access, f"etcds://{health}")


def test_an_expired_certificate_ends_the_start(secured: SecuredEtcd) -> None:
    pair = secured.authority.issue("expired", days=-2)
    with pytest.raises(AccessError, match=r"expired\.pem: expired on .*remedy: renew"):
        load_tls(secured.authority.ca, *pair)


def test_files_that_cannot_be_used_are_named(secured: SecuredEtcd, tmp_path: Path) -> None:
    ca, pair = secured.authority.ca, secured.client
    with pytest.raises(AccessError, match=r"ca .*nothing"):
        load_tls(tmp_path / "nothing", *pair)
    with pytest.raises(AccessError, match="belong together"):
        load_tls(ca, ca, pair.key)
    with pytest.raises(AccessError, match="go together"):
        load_tls(ca, pair.cert, None)
    loose = tmp_path / "loose.key"
    loose.write_bytes(pair.key.read_bytes())
    loose.chmod(0o644)
    with pytest.raises(AccessError, match="chmod 600"):
        load_tls(ca, pair.cert, loose)
    password = tmp_path / "password"
    password.write_text("pw\n")
    password.chmod(0o644)
    with pytest.raises(AccessError, match="chmod 600"):
        load_password(password)
    password.chmod(0o600)
    assert load_password(password) == "pw"
    password.write_text("\n")
    with pytest.raises(AccessError, match="empty"):
        load_password(password)


def test_what_is_configured_must_fit_together(tmp_path: Path, secured: SecuredEtcd) -> None:
    plain, given = "etcd://127.0.0.1:1", secured.access
    with pytest.raises(ValueError, match="unauthenticated_store"):
        check(plain, StoreAccess(), keeps_opens=True)
    check(plain, StoreAccess(), keeps_opens=False)
    check(plain, StoreAccess(unauthenticated_store=True), keeps_opens=True)
    check(plain, StoreAccess(secret_file=given.secret_file), keeps_opens=True)
    check(secured.url, given, keeps_opens=True)
    with pytest.raises(ValueError, match="contradict"):
        check(plain, StoreAccess(secret_file=given.secret_file, unauthenticated_store=True), keeps_opens=True)
    with pytest.raises(ValueError, match="etcds://"):
        check(plain, StoreAccess(ca=given.ca), keeps_opens=False)
    with pytest.raises(ValueError, match="go together"):
        check(plain, StoreAccess(user="u"), keeps_opens=False)
    with pytest.raises(ValueError, match="go together"):
        check(plain, StoreAccess(password_file=given.password_file), keeps_opens=False)


def test_a_store_that_is_open_to_a_network_is_warned_of(secured: SecuredEtcd) -> None:
    exposed, local = "etcd://127.0.0.1:1,10.0.0.1:2379", "etcd://127.0.0.1:1,[::1]:2,localhost:3"
    assert is_exposed(parse_url(exposed)) and not is_exposed(parse_url(local))
    assert not is_exposed(parse_url(exposed.replace("etcd:", "etcds:")))
    said = "\n".join(warnings(exposed, StoreAccess(user="u")))
    assert "WITHOUT TLS" in said and "password" in said and "NOT authenticated" in said
    assert warnings(secured.url, secured.access) == []
    assert len(warnings(local, StoreAccess())) == 1


def test_records_of_a_cluster_are_sealed_in_etcd(secured: SecuredEtcd) -> None:
    async def body() -> None:
        store = open_store(secured.url, "smb3server", secured.access)
        try:
            await store.commit([Put(f"{PREFIX}sealed/sealed", b"content")])
            await asyncio.to_thread(secured.ask_put, f"{PREFIX}sealed/forged", b"content")
            assert [entry.key for entry in await store.scan(f"{PREFIX}sealed/")] == [f"{PREFIX}sealed/sealed"]
            assert await store.purge(f"{PREFIX}sealed/") == [f"{PREFIX}sealed/forged"]
            # A name that is not UTF-8 keeps nobody from reading on.
            secured.as_root(
                "kv/put", {"key": base64.b64encode(f"{PREFIX}sealed/".encode() + b"\x80").decode(), "value": ""}
            )
            assert [entry.key for entry in await store.scan(f"{PREFIX}sealed/")] == [f"{PREFIX}sealed/sealed"]
            assert len(store.refused) == 1
        finally:
            await store.close()

    asyncio.run(body())
