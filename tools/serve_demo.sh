#!/bin/sh
# serve_demo.sh [smb3server options]: share ./demo-share with a fresh password, over TCP and over SMB Direct.
# DEMO_PASSWORD sets the password instead.
set -eu
cd "$(dirname "$0")/.."
mkdir -p demo-share
[ -e demo-share/README.txt ] || cat > demo-share/README.txt <<'TEXT'
This folder is shared by smb3server (make serve). What you put here, clients see; what they write arrives here.
TEXT
# The server never acts as root for a user who logs on: the folder and its contents belong to the user it acts as.
if [ "$(id -u)" = 0 ] && [ "$(stat -c %u demo-share)" = 0 ]; then chown -hR nobody: demo-share; fi
password=${DEMO_PASSWORD:-$(.venv/bin/python -c 'import secrets; print(secrets.token_hex(5))')}
echo "Sharing $PWD/demo-share as \"demo\" for user \"demo\", password \"$password\". Ctrl-C stops."
export SMB3SERVER_PASSWORD="$password"
exec .venv/bin/smb3server --share "demo=$PWD/demo-share" --user demo --rdma "$@"
