# args: siw|rxe IP. The port under our server goes down and comes up again. The client is this kernel; over rxe it is one of ours, and it does not
# reconnect: rxe of 6.12 carries no connection requests once it was given a message while its port was down. Leaves in CASE_OUT, for each of up, down and
# back: NAME-status.json (the server's), NAME-client.json and NAME-host.json (the doctor's, as a client and of the machine).
. /out/lib.sh
P=$1 IP=$2
ck sh /out/verbs-server.sh $P; [ $fail = 0 ] || exit 1
look() {
  smb3server status --json --state /tmp/state > $CASE_OUT/$1-status.json || return 1
  smb3server doctor --json > $CASE_OUT/$1-host.json     # their exit status is about RDMA
  # the machine reaches its own address whether the interface is up or not
  smb3server doctor //$IP/share --user u:pw --fabrics iwarp --rdma-port 5445 --json > $CASE_OUT/$1-client.json
  [ -s $CASE_OUT/$1-host.json ] && [ -s $CASE_OUT/$1-client.json ]
}
awaited() { local i=0; while ! grep -q "$2" $CASE_OUT/$1.log 2>/dev/null; do sleep 0.5; i=$((i+1)); [ $i -gt 120 ] && return 1; done; return 0; }
connect() {
  if [ $P = siw ]; then
    smb_mount $IP share /mnt rdma && dd if=/dev/urandom of=/mnt/kept bs=64k count=4 oflag=direct status=none && cp /mnt/kept /tmp/kept &&
      cp /proc/fs/cifs/DebugData $CASE_OUT/debugdata.txt
  else
    host_python -m tools.kernel_lab.holder $IP 445 > $CASE_OUT/holder.log 2>&1 &
    awaited holder ^connected
  fi
}
connected_again() {   # by itself; Linux tries every two seconds
  local i=0
  while ! timeout 20 cmp -s /tmp/kept /mnt/kept; do sleep 1; i=$((i+1)); [ $i -gt 10 ] && return 1; done; return 0
}
ck connect; ck look up
ck ip link set eth0 down; ck awaited server "verbs not served on $IP: port 1 of r_$P is down"
ck look down
ck ip link set eth0 up; ip route add default via 10.0.2.2; ck awaited server "WARNING.*: verbs on $IP, port"
[ $P = siw ] && { echo 3 > /proc/sys/vm/drop_caches; ck t connected_again; }
[ $P = rxe ] && ck awaited holder "^ended: .*port 1 of r_rxe is down"
ck look back
[ $P = siw ] && { ck rm /mnt/kept; ck umount /mnt; }
ck verbs_server_stop
exit $fail
