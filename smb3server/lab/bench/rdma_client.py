"""Make load over SMB Direct with this project's client, as labgen.c does over TCP: same options, same output.

    python -m smb3server.lab.bench.rdma_client --fabric iwarp -h HOST -p PORT -s SHARE -u USER \\
        -t read -b 65536 -q 4 -S gmac

It prints START when it is connected, begins when it reads a line, prints one line of JSON, and keeps the connection
until its input ends. Data goes by RDMA from 4 KiB on, and otherwise in messages. A block that is longer than the
longest request is several requests at once. With ``-R`` the data read is copied out of the buffer into which it came;
data that is signed or encrypted always is.

Over ``loopback``, client and server are this one process: it shares ``--folder`` with itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.backends.local.backend import LocalBackend
from smb3server.client.protocol import Client, open_rdma
from smb3server.client.protocol.messages import Way
from smb3server.client.protocol.negotiation import Offer
from smb3server.client.protocol.tree import RDMA_THRESHOLD, READ_WRITE
from smb3server.commands import load
from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.lab.bench.cases import PASSWORD_VARIABLE
from smb3server.lab.bench.figures import percentile
from smb3server.lab.bench.load import Case, Load, last_message_id, run
from smb3server.process import output
from smb3server.server.server import Server
from smb3server.settings.server import Settings
from smb3server.state.share import Share
from smbdirect.message_transport import MessageTransport
from smbdirect.providers.base import Provider
from smbdirect.providers.iwarp import IwarpProvider
from smbdirect.providers.loopback import LoopbackProvider
from smbdirect.providers.roce import RoceProvider
from smbdirect.transport.listen import listen

_CREDITS = 1024
_FILE = "big.bin"
_SIGNING = {
    "gmac": SigningAlgorithm.AES_GMAC,
    "cmac": SigningAlgorithm.AES_CMAC,
    "hmac": SigningAlgorithm.HMAC_SHA256,
}
_CIPHERS = {
    "gcm128": Cipher.AES_128_GCM,
    "ccm128": Cipher.AES_128_CCM,
    "gcm256": Cipher.AES_256_GCM,
    "ccm256": Cipher.AES_256_CCM,
}
_FABRICS: dict[str, type[Provider]] = {"iwarp": IwarpProvider, "roce": RoceProvider}


@asynccontextmanager
async def over_loopback(folder: Path, share: str, user: str, password: str) -> AsyncIterator[MessageTransport]:
    """Serve ``folder`` in this process, and connect to it."""
    load()
    users = UserDatabase()
    users.add(Account(user, nt_hash(password)))
    server = Server(Settings(), users)
    server.add_share(Share(share, backend=LocalBackend(folder)))
    fabric = LoopbackProvider()
    listener = await listen(fabric, "127.0.0.1", 0, server.accept)
    yield await open_rdma(fabric, "127.0.0.1", listener.address[1])
    await listener.close()
    await server.shutdown(2)


@asynccontextmanager
async def connected(options: argparse.Namespace) -> AsyncIterator[MessageTransport]:
    """Connect to the server that the options name."""
    if options.fabric == "loopback":
        async with over_loopback(options.folder, options.share, options.user, options.password) as transport:
            yield transport
    else:
        yield await open_rdma(_FABRICS[options.fabric](), options.host, options.port)


async def measure(options: argparse.Namespace) -> None:
    """Connect, wait for the line, make the load, print what it did, and wait for the end of the input."""
    async with connected(options) as transport:
        offer = Offer()
        if options.signing:
            offer = replace(offer, signing_algorithms=(_SIGNING[options.signing],))
        if options.cipher:
            offer = replace(offer, ciphers=(_CIPHERS[options.cipher],))
        client = await Client.connect(transport, (0x0311,), offer, credits_wanted=_CREDITS)
        sign, encrypt = bool(options.signing), bool(options.cipher)
        session = await client.log_on(options.user, options.password, sign=sign, encrypt=encrypt)
        tree = await session.tree_connect(options.share)
        if tree.choice.way is Way.INLINE:
            raise RuntimeError(f"data does not go by RDMA: {tree.choice.why_inline}")
        file = await tree.create(_FILE, READ_WRITE)
        rdma, write = transport.rdma, options.test == "write"
        assert rdma is not None
        limit = client.negotiated.max_write_size if write else client.negotiated.max_read_size
        piece = min(options.block, limit, rdma.max_read_write_size)
        load = Load(client, session, tree, file, await last_message_id(client) + 1, options.megabytes << 20)
        load.scattered, load.touch = options.test == "randread", options.touch
        print("START", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        used = time.process_time()
        case, depth = Case(write, piece, piece >= RDMA_THRESHOLD), options.depth * -(-options.block // piece)
        elapsed = await load.run(case, depth, options.seconds, options.most)
        used, latencies = time.process_time() - used, sorted(load.latencies)
        found = {
            "test": options.test,
            "n": 1,
            "qd": depth,
            "bs": piece,
            "secs": elapsed,
            "ops": load.operations,
            "ops_s": load.operations / elapsed,
            "MB_s": load.operations * piece / elapsed / 1e6,
            "errs": 0,
            "p50_us": percentile(latencies, 0.5) * 1e6,
            "p99_us": percentile(latencies, 0.99) * 1e6,
            "client_cpu": used,
            "each": [load.operations],
        }
        print(json.dumps(found), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        transport.abort("measured")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m smb3server.lab.bench.rdma_client", description=__doc__, add_help=False
    )
    parser.add_argument("--help", action="help")
    parser.add_argument("--fabric", choices=(*_FABRICS, "loopback"), required=True)
    parser.add_argument("--folder", type=Path, help="what loopback shares")
    parser.add_argument("-h", dest="host", default="127.0.0.1")
    parser.add_argument("-p", dest="port", type=int, default=5445)
    parser.add_argument("-s", dest="share", default="perf")
    parser.add_argument("-u", dest="user", required=True)
    parser.add_argument("-t", dest="test", choices=("read", "write", "randread"), default="read")
    parser.add_argument("-b", dest="block", type=int, default=1 << 20, help="bytes")
    parser.add_argument("-q", dest="depth", type=int, default=1)
    parser.add_argument("-c", dest="most", type=int, default=sys.maxsize, help="operations")
    parser.add_argument("-T", dest="seconds", type=float, default=5.0)
    parser.add_argument("-z", dest="megabytes", type=int, default=256, help="size of the file")
    parser.add_argument("-R", dest="touch", action="store_true", help="copy the data read out of its buffer")
    parser.add_argument("-S", dest="signing", choices=_SIGNING, help="sign")
    parser.add_argument("-E", dest="cipher", choices=_CIPHERS, help="encrypt")
    options = parser.parse_args()
    options.password = os.environ.get(PASSWORD_VARIABLE)
    if options.password is None:
        parser.error(f"the environment has no {PASSWORD_VARIABLE}")
    run(measure(options))


if __name__ == "__main__":
    sys.exit(output.run(main))
