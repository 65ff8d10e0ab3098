# args: tcp IP. Runs a node of a cluster and its etcd in this guest (HOSTROOT=1), mounted by this kernel through the service's address. The clock is set
# forward and back during a copy, and while the server is down. Environment: TREE and PYTHON, the project and its interpreter as on the host; BULK_MIB (16).
# Leaves CASE_OUT/server.log, status.json, debugdata.txt.
. /out/lib.sh
BULK_MIB=${BULK_MIB:-16} SERVICE=10.0.2.100 DAY=86400
net_user; [ -d /host/usr ] || ck host_root
modprobe cifs; mkdir -p /mnt2 /host/tmp/share; rm -f /tmp/go /tmp/held
cat > /host/tmp/clock.toml <<END
[server]
listen = ["0.0.0.0"]
rdma = "off"
log_level = "info"
allow_root = true
[cluster]
etcd = "etcd://127.0.0.1:2379"
node = "a"
ttl = 4
[[service]]
name = "files"
addresses = ["$SERVICE/24@eth0"]
[[share]]
name = "share"
path = "/tmp/share"
force_user = "root"
continuous_availability = true
service = "files"
[[user]]
name = "u"
password = "pw"
END
chmod 600 /tmp/clock.toml
chroot /host /usr/bin/etcd --name m --data-dir /tmp/etcd > $CASE_OUT/etcd.log 2>&1 & ETCD=$!
start() {
  chroot /host /bin/sh -c "cd $TREE && exec env PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 $PYTHON -m smb3server --config /tmp/clock.toml --state /tmp/state" \
    >> $CASE_OUT/server.log 2>&1 & SERVER=$!
}
served() { local i=0; while ! ip addr show dev eth0 | grep -q "$SERVICE/"; do sleep 0.2; i=$((i+1)); [ $i -gt 600 ] && return 1; kill -0 $SERVER || return 1; done; return 0; }
held() { local i=0; while [ ! -e /tmp/held ]; do sleep 0.1; i=$((i+1)); [ $i -gt 300 ] && return 1; done; return 0; }
undisturbed() { [ $(grep -c "is served here" $CASE_OUT/server.log) = 1 ] && ! grep -q "is lost\|no word\|lease is gone\|disconnecting" $CASE_OUT/server.log; }
report() { chroot /host /bin/sh -c "cd $TREE && PYTHONDONTWRITEBYTECODE=1 $PYTHON -m smb3server status --json --state /tmp/state" > $CASE_OUT/status.json; }
mnt() { smb_mount $SERVICE share $1 rw,persistenthandles,hard,nosharesock,cache=strict,handletimeout=60000; }
: > $CASE_OUT/server.log; start
ck served; [ $fail = 1 ] && { cat $CASE_OUT/server.log; exit 1; }
ck mnt /mnt; ck mnt /mnt2
head -c $((BULK_MIB * 1048576)) /dev/urandom > /tmp/bulk
/out/persist.bin hold /mnt /tmp/held /tmp/go & HOLD=$!
ck held
/out/persist.bin copy /tmp/bulk /mnt/direct & COPY=$!
now=$(date +%s)
ck date -s @$((now + DAY)); sleep 6; ck undisturbed                      # longer than the lease
ck date -s @$((now - DAY)); sleep 6; ck undisturbed
ck wait $COPY; ck undisturbed; ck cmp -s /tmp/bulk /host/tmp/share/direct
kill -9 $SERVER; wait $SERVER                                            # its handles' time-outs go on over a jump, too
ck date -s @$((now + DAY)); start; sleep 5; ck served; sleep 5
ck /out/persist.bin try /mnt2/held
ck report
touch /tmp/go; ck wait $HOLD
cp /proc/fs/cifs/DebugData $CASE_OUT/debugdata.txt
ck [ ! -e /host/tmp/share/gone ]
ck rm /mnt/direct /mnt/held /mnt/cached; ck umount /mnt; ck umount /mnt2
kill $SERVER; ck wait $SERVER; kill $ETCD
exit $fail
