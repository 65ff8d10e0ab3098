"""impacket's SMB client with more than one channel per session, which it does not know by itself: the binding
(MS-SMB2 3.2.4.2.3.1), ChannelSequence and replays, breaks and their acknowledgments. As a script: a client on another
machine, which holds an oplock and says on which channel the break reaches it."""

from __future__ import annotations

import sys
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket import crypto, smb3, smb3structs

from smb3server.client.protocol import open_rdma
from smbdirect.providers.make import make_provider
from tests.lab.impacket_adapter import TransportSession

DIALECT = smb3structs.SMB2_DIALECT_302
"""Whose keys do not depend on the messages exchanged."""
BINDING, REPLAY = 0x01, 0x20000000
UNSOLICITED = 0xFFFFFFFFFFFFFFFF
BATCH, LEVEL_II = 9, 1
MAXIMUM, SHARE_ALL, OPEN_IF = 0x0012019F, 7, 3


def signing_key(session_key: bytes) -> bytes:
    """3.1.4.2, dialects 3.0 and 3.0.2."""
    return bytes(crypto.KDF_CounterMode(session_key, b"SMB2AESCMAC\0", b"SmbSign\0", 128))


class Channel(smb3.SMB3):  # type: ignore[misc]
    """A connection with a session; with ``primary`` one more for that one's. Neither signs nor encrypts, so that data
    may go by RDMA. Trees and opens are the session's."""

    def __init__(self, host: str, port: int, *, rdma: bool = False, primary: Channel | None = None) -> None:
        self.primary = primary
        self.sequence = 0
        """ChannelSequence of what is sent from now on."""
        self.replay = False
        """Whether it is sent for the second time."""
        session = TransportSession(lambda: open_rdma(make_provider("iwarp"), host, port)) if rdma else None
        super().__init__(host, host, sess_port=port, preferredDialect=DIALECT, session=session, timeout=30)
        self._Connection["SupportsEncryption"] = False
        self.login("u", "pw")
        if primary is not None:
            for table in ("TreeConnectTable", "OpenTable"):
                self._Session[table] = primary._Session[table]

    def negotiateSession(self, preferredDialect: int | None = None, negSessionResponse: Any = None) -> Any:
        self._Connection["SequenceWindow"] = 0
        if self.primary is not None:
            self.ClientGuid = self.primary.ClientGuid
        return super().negotiateSession(preferredDialect, negSessionResponse)

    def sendSMB(self, packet: Any) -> Any:
        if isinstance(packet, smb3structs.SMB3Packet):
            packet["ChannelSequence"] = self.sequence
        if self.replay:
            packet["Flags"] = packet.fields.get("Flags", 0) | REPLAY
        if self.primary is None or packet["Command"] != smb3structs.SMB2_SESSION_SETUP:
            return super().sendSMB(packet)
        self._Session["SessionID"] = self.primary._Session["SessionID"]
        packet["Data"]["Flags"] = BINDING
        packet["Flags"] = smb3structs.SMB2_FLAGS_SIGNED
        key = signing_key(self.primary._Session["SessionKey"])
        wire = self._NetBIOSSession
        send = wire.send_packet

        def signed(data: bytes) -> None:
            message = bytearray(data)
            message[48:64] = bytes(16)
            message[48:64] = crypto.AES_CMAC(key, bytes(message), len(message))
            send(bytes(message))

        wire.send_packet = signed
        try:
            return super().sendSMB(packet)
        finally:
            del wire.send_packet

    def open(self, tree: int, name: str, oplock: int = 0) -> bytes:
        """FileId."""
        return bytes(self.create(tree, name, MAXIMUM, SHARE_ALL, 0x40, OPEN_IF, 0, oplockLevel=oplock))

    def wait_for_break(self) -> Any:
        """The next oplock break notification. ``recvSMB`` would give a MessageId back for its CreditCharge of 0."""
        while True:
            packet = smb3structs.SMB2Packet(self._NetBIOSSession.recv_packet(60).get_trailer())
            if packet["MessageID"] == UNSOLICITED:
                return smb3structs.SMB2OplockBreakNotification(packet["Data"])

    def acknowledge(self, tree: int, file_id: bytes) -> None:
        """Go down to level II. Raises ``SessionError``."""
        acknowledgment = smb3structs.SMB2OplockBreakAcknowledgment()
        acknowledgment["OplockLevel"] = LEVEL_II
        acknowledgment["FileID"] = file_id
        packet = self.SMB_PACKET()
        packet["Command"] = smb3structs.SMB2_OPLOCK_BREAK
        packet["CreditCharge"] = 1
        packet["TreeID"] = tree
        packet["Data"] = acknowledgment
        self.recvSMB(self.sendSMB(packet)).isValidAnswer(0)


def main(first: str, tcp_host: str, tcp_port: str, rdma_host: str, rdma_port: str) -> None:
    """Hold an oplock by a session that began over ``first`` (tcp or rdma) and has a channel over the other, too."""
    ways = {"tcp": (tcp_host, int(tcp_port), False), "rdma": (rdma_host, int(rdma_port), True)}
    second = "rdma" if first == "tcp" else "tcp"
    host, port, rdma = ways[first]
    primary = Channel(host, port, rdma=rdma)
    host, port, rdma = ways[second]
    bound = Channel(host, port, rdma=rdma, primary=primary)
    tree = primary.connectTree("share")
    file_id = primary.open(tree, "held", BATCH)
    print("holding", flush=True)
    bound.wait_for_break()
    print(f"break over {second}", flush=True)
    bound.acknowledge(tree, file_id)
    print("acknowledged", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
