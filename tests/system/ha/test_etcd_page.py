"""docs/etcd.md, run as it is written: certificates, settings, users and the first look."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cluster.lab import why_not

PAGE = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists()) / "docs" / "etcd.md"
ISOLATED = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
"""The members' addresses, processes and files are those of the test alone."""
NETWORK = """
mount -t tmpfs none /run && mkdir -p /run/netns
ip link set lo up
ip link add br0 type bridge && ip addr add 10.0.0.9/24 dev br0 && ip link set br0 up
for n in 1 2 3; do
  ip netns add e$n
  ip link add to-e$n master br0 type veth peer name eth0 netns e$n
  ip link set to-e$n up
  ip -n e$n link set lo up
  ip -n e$n addr add 10.0.0.$n/24 dev eth0
  ip -n e$n link set eth0 up
done
"""
START = """
for address in $members; do
  mkdir -p "run-$address"
  cp ca.pem "run-$address/ca.pem"
  cp "etcd-$address.pem" "run-$address/member.pem"
  cp "etcd-$address.key" "run-$address/member.key"
  sed "s#/etc/etcd/#$PWD/run-$address/#; s#/var/lib/etcd/default#$PWD/run-$address/data#" "etcd-$address.default" >env
  ip netns exec "e${address##*.}" env $(cat env) etcd >"etcd-$address.log" 2>&1 &
done
"""
"""What systemd does with the members' settings, each on a machine of its own."""


@pytest.mark.root
@pytest.mark.interop
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.skipif(shutil.which("etcdctl") is None, reason="etcdctl is not installed (etcd-client)")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_page(tmp_path: Path) -> None:
    page = PAGE.read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    (tmp_path / "smb3server").write_text(f'#!/bin/sh\nexec {sys.executable} -m smb3server "$@"\n')
    (tmp_path / "smb3server").chmod(0o755)
    script = "\n".join([NETWORK, *blocks[:3], START, *blocks[3:]])
    ended = subprocess.run(
        [*ISOLATED, "bash", "-eu", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "PYTHONPATH": str(PAGE.parent.parent),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "No node is up." in ended.stdout
    assert len(re.findall(r"https://10\.0\.0\.[123]:2379 +│ answers +│ +0 MiB +│ +8192 MiB", ended.stdout)) == 3, (
        ended.stdout
    )
    assert "etcd member" not in ended.stdout.partition("No node is up.")[2]
