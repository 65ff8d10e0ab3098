# args: siw|tcp IP [mount options]. Two NICs and a session with channels over both: first one link, then the other, goes down while data moves.
# host: the link of the second NIC, at the host's end. guest: the link of the first NIC, in the guest; the mount was made over it.
# multichannel-mixed: a second mount over TCP writes, and the one over SMB Direct reads the data.
# Leaves in CASE_OUT debugdata-WHEN.txt and status-WHEN.json (the client's and the server's view) from before, DOWN (while a link is) and UP (again).
. /out/lib.sh
P=$1 IP=$2 OPTS=$3 CASE_OUT=${CASE_OUT:-/out} BULK_MIB=${BULK_MIB:-64} SECONDS_DOWN=${SECONDS_DOWN:-25} WRITER=/mnt
case ${CASE_OUT##*/} in *-mixed) WRITER=/mnt2;; esac
R=rw; [ $P = tcp ] || R=rdma
n=0; for net in 10.77.0 10.78.0; do
  ip addr show dev eth$n | grep -q $net.2 || ip addr add $net.2/24 dev eth$n
  [ $P = tcp ] || rdma link show | grep -q "r_siw$n" || { modprobe siw; ck rdma link add r_siw$n type siw netdev eth$n; }
  ping -c1 -W2 $net.1 >/dev/null; n=$((n+1))      # a cold ARP makes the first RDMA connect time out
done
# siw leaves a dead peer to TCP's retransmissions, which take a quarter of an hour; limit them to some seconds, as RDMA hardware does. Over TCP the client
# passes the error of a socket that ends by itself to programs (docs/kernel-lab.md), so it keeps the default.
[ $P = tcp ] && echo 15 > /proc/sys/net/ipv4/tcp_retries2 || echo 4 > /proc/sys/net/ipv4/tcp_retries2
modprobe cifs; client_credits ${CREDITS:-255}
wait_for() { local i=0; while ! "$@"; do sleep 0.5; i=$((i+1)); [ $i -le 120 ] || return 1; done; }
channels() { [ $(grep -c "Extra Channels: [1-9]" /proc/fs/cifs/DebugData) = $(grep -c " cifs " /proc/mounts) ]; }
link() {   # NUMBER up|down, by the host at its end of the wire
  echo "$@" > $CASE_OUT/ask.new; mv $CASE_OUT/ask.new $CASE_OUT/ask-link
  local i=0; while [ -e $CASE_OUT/ask-link ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
  [ ! -e $CASE_OUT/link-error ] && [ ! -e $CASE_OUT/ask-link ]
}
views() {   # NAME
  cp /proc/fs/cifs/DebugData $CASE_OUT/debugdata-$1.txt
  : > $CASE_OUT/ask-status; local i=0
  while [ -e $CASE_OUT/ask-status ] && [ $i -lt 100 ]; do sleep 0.2; i=$((i+1)); done
  mv $CASE_OUT/status.json $CASE_OUT/status-$1.json
}
ended() {   # PID SECONDS: whether it ends in time and successfully; otherwise print what the kernel's tasks wait for
  local i=0; while kill -0 $1 2>/dev/null; do
    sleep 1; i=$((i+1)); [ $i -gt $2 ] && { say "process $1 hangs"; echo w > /proc/sysrq-trigger; return 1; }
  done
  wait $1 || { say "process $1 failed"; return 1; }
}
interrupted() {   # NAME, what takes the link down, what brings it back: data moves both ways and through the cache meanwhile
  local r=0
  /out/transfer.bin write $WRITER/written $SECONDS_DOWN 16 & local w=$!
  /out/transfer.bin read /mnt/read $SECONDS_DOWN 16 & local d=$!
  (while [ -e /tmp/copying ]; do cp /tmp/bulk $WRITER/copied && cmp -s /tmp/bulk /mnt/copied || exit 1; done) & local c=$!
  sleep 3; say "$1: link down"; $2 || r=1
  for p in $w $d; do ended $p $((SECONDS_DOWN + 75)) || r=1; done
  views $1-down; rm /tmp/copying; ended $c 40 || r=1
  $3 || r=1; say "$1: link up"
  return $r
}
host_down() { link 1 down; }; host_up() { link 1 up; }
guest_down() { ip link set eth0 down; }; guest_up() { ip link set eth0 up; }
outage() {   # NAME
  : > /tmp/copying; ck interrupted $1 $1_down $1_up
  ck wait_for all_back; views $1-up
}
all_back() { ! grep -q "RECONNECTING\|NeedReconnect\|DISCONNECTED" /proc/fs/cifs/DebugData; }

mnt() { smb_mount $IP share $1 $2,multichannel,max_channels=4,echo_interval=1,hard,cache=strict${OPTS:+,$OPTS}; }
ck mnt /mnt $R
[ $WRITER = /mnt ] || { mkdir -p /mnt2; ck mnt /mnt2 rw,nosharesock; }
[ $fail = 0 ] || { dmesg | tail -20; exit 1; }
wait_for channels; cat /proc/fs/cifs/DebugData > $CASE_OUT/debugdata.txt
head -c $((BULK_MIB * 1048576)) /dev/urandom > /tmp/bulk
ck t cp /tmp/bulk $WRITER/plain; ck t sync $WRITER/plain
echo 3 > /proc/sys/vm/drop_caches
ck t cmp -s /tmp/bulk /mnt/plain
views before
outage host; outage guest
ck sh -c "cp /tmp/bulk $WRITER/after && cmp /tmp/bulk /mnt/after"
ck rm /mnt/plain /mnt/written /mnt/read /mnt/copied /mnt/after
[ $WRITER = /mnt ] || ck umount $WRITER
ck umount /mnt
exit $fail
