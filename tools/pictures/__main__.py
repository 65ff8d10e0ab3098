"""Write the pictures of terminals to docs/pictures. Needs root, for network namespaces; no network, no RDMA device."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from smb3server.process import output
from tools.pictures.scene import PASSWORD, ROOT, STAGED, enter, set_up, shell
from tools.pictures.svg import film, still

LIMIT = 300 * 1024
_GET = "smb3server client get --rdma=prefer smb://alice@nas/data/film.mkv"


def take(folder: Path) -> None:
    """Play the scene: a server starts, a client copies, and the server and the client are asked how."""
    folder.mkdir(parents=True, exist_ok=True)
    set_up()

    server = shell("nas", "root", 132, 24)
    server.run("smb3server --share data=/srv/data --user alice --rdma --drop-privileges", until="assword of alice")
    server.type(PASSWORD + "\n")
    server.wait("^ready ")
    _write(folder / "serve.svg", film(server.frames, "A server starts"))

    client = shell("pc", "alice", 96, 20)
    client.run("smb3server client ls -lh smb://alice@nas/data")
    client.stand(0.8)
    client.run(_GET)
    client.stand(0.5)
    _write(folder / "client.svg", film(client.frames, "A client copies by RDMA"))

    # Status has something to show while a client works.
    client.type("smb3server client bench --rdma=prefer --size 1024 smb://alice@nas/data\n")
    client.stand(4.0)
    operator = shell("nas", "root", 104, 50)
    operator.run("smb3server status sessions channels shares files")
    _write(folder / "status.svg", still(operator.frames[-1].screen[:-1], "smb3server status"))
    client.wait(r"alice@pc:~\$$", 120)

    visitor = shell("pc", "alice", 132, 40)
    visitor.run("smb3server doctor //nas/data --user alice")
    _write(folder / "doctor.svg", still(visitor.frames[-1].screen, "smb3server doctor"))
    for terminal in (visitor, operator, client, server):
        terminal.close()


def _write(path: Path, picture: str) -> None:
    size = len(picture.encode())
    if size > LIMIT:
        raise SystemExit(f"tools.pictures: {path}: {size} bytes are more than {LIMIT}")
    path.write_text(picture)
    print(f"{path}: {size} bytes", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.pictures", description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "pictures")
    folder = parser.parse_args().folder.resolve()
    if not os.environ.get(STAGED):
        enter()
    take(folder)
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
