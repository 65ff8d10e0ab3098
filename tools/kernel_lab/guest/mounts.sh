# Source it after lib.sh (. /out/mounts.sh), then: two_mounts PROTOCOL IP [mount options]. Mounts the share at /mnt and at /mnt2 as two clients, with
# separate connections, ClientGuids and caches. actimeo=0: names and attributes are queried, not remembered; data stays cached as leases allow.
two_mounts() {
  local P=$1 IP=$2 OPTS=$3 R=rdma
  net_user; [ $IP = self ] && { ksmbd_start; IP=10.0.2.15; }
  [ $P = tcp ] && R=rw || rdma_dev $P
  modprobe cifs; client_credits ${CREDITS:-255}; mkdir -p /mnt2
  ping -c1 -W2 $IP >/dev/null      # a cold ARP makes the first RDMA connect time out
  for m in /mnt /mnt2; do ck smb_mount $IP share $m $R,cache=strict,nosharesock,actimeo=0${OPTS:+,$OPTS}; done
  [ $(grep -c "ClientGUID\|ConnectionId" /proc/fs/cifs/DebugData) -ge 2 ] || { say "FAIL(1): two connections"; fail=1; }
}
