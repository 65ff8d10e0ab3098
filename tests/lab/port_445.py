"""Servers for programs that know port 445 only. Each test process has an address of its own for them."""

from __future__ import annotations

import os
import shutil
import socket

import pytest

HOST = f"127.77.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
PORT = 445


def _missing(programs: tuple[str, ...]) -> str:
    if absent := [program for program in programs if shutil.which(program) is None]:
        return f"not installed: {', '.join(absent)}"
    if os.geteuid() != 0:
        return f"takes root: {programs[0]} knows port 445 only"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, PORT))
        except OSError as error:
            return f"{HOST} port {PORT}: {error.strerror}"
    return ""


def needing(*programs: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a module whose tests run ``programs`` against a server at ``HOST`` and ``PORT``."""
    missing = _missing(programs)
    return [pytest.mark.interop, pytest.mark.root, pytest.mark.skipif(bool(missing), reason=missing or "-")]
