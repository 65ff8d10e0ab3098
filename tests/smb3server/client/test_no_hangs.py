"""Programs that end, raise, fork or drop their files with shares and files open: none of them hangs, none loses data
without a word."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from smb3server.client import connect
from smb3server.client.filesystem import SmbDirectFileSystem
from tests.lab.remote import PASSWORD, USER, Home

LIMIT = 60
"""Seconds for a program that needs one."""
CONNECTED = """
    import gc, os, sys, threading
    from smb3server.client import background
    from smb3server.client.sync import connect
    share = connect(os.environ["URL"], rdma="off")
"""


def program(served: Home, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has connected to the share, in a process of its own."""
    environment = os.environ | {"URL": served.url, "PORT": str(served.port), "SMB3SERVER_PASSWORD": PASSWORD}
    code = textwrap.dedent(CONNECTED) + textwrap.dedent(text)
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=LIMIT)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_program_that_raises_ends_with_its_data_written(served: Home, folder: Path) -> None:
    (folder / "in").write_text("0123456789")
    ended = program(
        served,
        """
        import io
        class Node: pass
        text = share.open("test/text", "w"); text.write("a text")
        binary = share.open("test/binary", "wb"); binary.write(b"a binary")
        raw = share.open("test/raw", "wb", buffering=0); raw.write(b"a raw file")
        both = share.open("test/both", "w+b"); both.write(b"both")
        wrapped = io.TextIOWrapper(share.open("test/wrapped", "wb")); wrapped.write("wrapped")
        node = Node(); node.node = node; node.file = share.open("test/cycle", "w"); node.file.write("a cycle")
        read = share.open("test/in", "rb"); read.read(3)
        walk = share.walk(); next(walk)
        raise TypeError("of the program")
        """,
    )
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, "TypeError: of the program"), ended.stderr
    assert contents(folder) == {
        "text": "a text",
        "binary": "a binary",
        "raw": "a raw file",
        "both": "both",
        "wrapped": "wrapped",
        "cycle": "a cycle",
        "in": "0123456789",
    }


def test_what_cannot_be_written_at_the_end_is_told(served: Home, folder: Path) -> None:
    ended = program(
        served,
        """
        file = share.open("test/lost", "w"); file.write("a text")
        share.close()
        """,
    )
    assert "smb3server.client: test/lost: not closed, what was written last may be lost: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_end_waits_for_a_bounded_time(served: Home, folder: Path) -> None:
    ended = program(
        served,
        """
        import asyncio
        background.END_LIMIT = 0.5
        file = share.open("test/slow", "w"); file.write("a text")
        from smb3server.client.handle import Handle
        Handle.do = lambda self, work: asyncio.sleep(1000)
        share.asynchronous.link.close = lambda: asyncio.sleep(1000)
        """,
    )
    assert ended.returncode == 0
    assert "test/slow: not closed within" in ended.stderr
    assert "the shares were not closed within" in ended.stderr


def test_a_progress_function_that_uses_a_share_gets_an_error(served: Home, folder: Path, tmp_path: Path) -> None:
    (folder / "in").write_bytes(bytes(10))
    ended = program(
        served,
        f"""
        try:
            share.download("test/in", {str(tmp_path / "out")!r}, progress=lambda done, size: share.stat("test/in"))
        except RuntimeError as error:
            print(error)
        print(share.read_bytes("test/in") == bytes(10))
        """,
    )
    assert ended.stdout.splitlines()[-1] == "True", ended.stderr
    assert "progress functions" in ended.stdout


@pytest.mark.parametrize("where", ["the loop's thread", "another thread"])
def test_a_file_in_a_cycle_is_closed_without_waiting(served: Home, folder: Path, tmp_path: Path, where: str) -> None:
    (folder / "in").write_bytes(bytes(10))
    collect = f'share.download("test/in", {str(tmp_path / "out")!r}, progress=lambda done, size: gc.collect())'
    ended = program(
        served,
        f"""
        gc.disable()
        class Node: pass
        for name in ("text", "binary"):
            node = Node(); node.node = node
            node.file = share.open("test/" + name, "w" if name == "text" else "wb")
            node.file.write("collected" if name == "text" else b"collected")
            del node
        run = background.Background.run
        def ours(self, work):
            assert threading.get_ident() not in self._collecting, "it waits in a collection"
            return run(self, work)
        background.Background.run = ours
        {collect if where == "the loop's thread" else "gc.collect()"}
        share.close()
        print("done")
        """,
        "-W",
        "default",
    )
    assert ended.stdout == "done\n", ended.stderr
    assert contents(folder) == {"in": "\0" * 10, "text": "collected", "binary": "collected"}
    assert "not closed" not in ended.stderr
    assert "ResourceWarning: unclosed file 'test/text'" in ended.stderr
    assert "ResourceWarning: unclosed file 'test/binary'" in ended.stderr


def test_a_file_that_is_dropped_is_written_at_once(served: Home, folder: Path) -> None:
    ended = program(
        served,
        """
        share.open("test/out", "w").write("a text")
        print(share.read_text("test/out"))
        """,
    )
    assert ended.stdout == "a text\n", ended.stderr


def test_a_child_process_cannot_use_its_parents_share(served: Home, folder: Path) -> None:
    """It may connect for itself, it ends like any other process, and it writes nothing of its parent's."""
    (folder / "in").write_text("in")
    ended = program(
        served,
        """
        file = share.open("test/out", "w"); file.write("once")
        walk = share.walk(); next(walk)
        child = os.fork()
        if not child:
            for use in (share.listdir, file.flush, file.close):
                try:
                    use()
                except RuntimeError as error:
                    print(error)
            share.close()
            print(connect(os.environ["URL"], rdma="off").read_text("test/in"))
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), share.read_text("test/out") == "")
        file.close()
        print(share.read_text("test/out"))
        """,
        # CPython 3.12 and later warn of every fork beside a thread: the rest of this program minds it.
        "-W",
        "ignore::DeprecationWarning",
    )
    lines = ended.stdout.splitlines()
    assert [("before a fork" in line) for line in lines[:3]] == [True] * 3, ended
    assert lines[3:] == ["in", "7 True", "once"], ended
    assert ended.stderr == ""


def test_a_file_system_connects_anew_in_a_child_process(served: Home, folder: Path) -> None:
    (folder / "in").write_text("in")
    ended = program(
        served,
        """
        import multiprocessing
        from smb3server.client.filesystem import SmbDirectFileSystem
        system = SmbDirectFileSystem("127.0.0.1", int(os.environ["PORT"]), "u", rdma="off")
        file = system.open("/share/test/out", "w"); file.write("a text")
        def work(): print(system.cat("/share/test/in"), flush=True)
        with system._lock:
            child = multiprocessing.get_context("fork").Process(target=work)
            child.start()
        child.join()
        print(child.exitcode, system.cat("/share/test/in"))
        """,
    )
    assert ended.stdout.splitlines() == ["b'in'", "0 b'in'"], ended.stderr
    assert (folder / "out").read_text() == "a text"


def test_another_event_loop_gets_an_error(served: Home) -> None:
    async def main() -> None:
        share = await connect(served.url, password=PASSWORD, rdma="off")
        await share.write_bytes("in", b"in")
        file = await share.open("in", "rb")

        def elsewhere() -> None:
            for work in (share.listdir, file.read, share.close):
                with pytest.raises(RuntimeError, match="another event loop"):
                    asyncio.run(work())

        await asyncio.to_thread(elsewhere)
        assert await file.read() == b"in"
        await file.close()
        await share.remove("in")
        await share.close()

    asyncio.run(main())


def test_a_pickle_has_no_password_that_was_not_given(served: Home, tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text(f"username={USER}\npassword={PASSWORD}\n")
    credentials.chmod(0o600)
    options = {"credentials_file": str(credentials), "rdma": "off"}
    system = SmbDirectFileSystem("127.0.0.1", served.port, USER, **options)
    system.ls("/share")
    pickled = pickle.dumps(system)
    system.close()
    assert PASSWORD.encode() not in pickled.replace(str(credentials).encode(), b"")
    found = pickle.loads(pickled)
    found.ls("/share")
    found.close()
