# . /out/mounts.sh after lib.sh; then: two_mounts PROTOCOL IP [mount options]. The share at /mnt and at /mnt2 as two clients: connections, ClientGuids and
# caches of their own. actimeo=0: names and attributes are asked for, not remembered; data stays cached as leases allow.
two_mounts() {
  local P=$1 IP=$2 OPTS=$3 R=rdma
  net_user; [ $P = tcp ] && R=rw || rdma_dev $P
  modprobe cifs; client_credits ${CREDITS:-255}; mkdir -p /mnt2
  ping -c1 -W2 $IP >/dev/null      # a cold ARP makes the first RDMA connect time out
  for m in /mnt /mnt2; do ck smb_mount $IP share $m $R,cache=strict,nosharesock,actimeo=0${OPTS:+,$OPTS}; done
  [ $(grep -c "ClientGUID\|ConnectionId" /proc/fs/cifs/DebugData) -ge 2 ] || { say "FAIL(1): two connections"; fail=1; }
}
