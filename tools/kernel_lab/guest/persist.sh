# args: siw|tcp IP [mount options]. A copy through persistent handles continues while the server fails and comes back; locks, and a file without a name,
# stay as they were. Environment: HOW, the failure that the host causes (kill, stop, cut) once the copy has begun; BULK_MIB (64) of the copy.
# Leaves CASE_OUT/session.pcap, debugdata.txt, noticed (seconds until a client that waited for a lock noticed). The host leaves happened (when the server
# failed), failure.json and status.json.
. /out/lib.sh
P=$1 IP=$2 OPTS=$3 CASE_OUT=${CASE_OUT:-/out} BULK_MIB=${BULK_MIB:-64} R=rw
case $IP in 10.0.2.2) net_user;; *) ip addr show dev eth0 | grep -q "${IP%.*}.2/" || ip addr add ${IP%.*}.2/24 dev eth0;; esac
[ $P = tcp ] || { R=rdma; rdma_dev $P; }
modprobe cifs; client_credits ${CREDITS:-255}; mkdir -p /mnt2 /mnt3; rm -f /tmp/go /tmp/held
ping -c1 -W2 $IP >/dev/null      # a cold ARP makes the first RDMA connect time out
ask() {   # WHAT [WORDS]: let the host do it; errors are in failed-WHAT
  local what=$1 i=0; shift; rm -f $CASE_OUT/failed-$what
  echo "$*" > $CASE_OUT/new-$what; mv $CASE_OUT/new-$what $CASE_OUT/ask-$what
  while [ -e $CASE_OUT/ask-$what ]; do sleep 0.1; i=$((i+1)); [ $i -gt 2400 ] && return 1; done
  [ ! -e $CASE_OUT/failed-$what ] || { cat $CASE_OUT/failed-$what; return 1; }
}
rm -f /tmp/cap.pcap; tcpdump -Z root -i eth0 -s 0 -B 65536 -w /tmp/cap.pcap -U 'tcp port 5445 or tcp port 445' 2>/dev/null & T=$!; capturing /tmp/cap.pcap
stop_capture() { sleep 1; kill -INT $T; wait $T; cp /tmp/cap.pcap $CASE_OUT/session.pcap; }
mnt() { smb_mount $IP share $1 $R,persistenthandles,hard,nosharesock,cache=$2,echo_interval=${3:-1},handletimeout=20000${OPTS:+,$OPTS}; }
# Local ports of established connections to the server.
connections() { cat /proc/net/tcp | while read -r n local remote state rest; do case $remote$state in *:01BD01|*:154501) echo ${local#*:};; esac; done; }
# Measures how long a client that only waits for an answer takes to notice the failure: until its connection has ended.
notice() {
  local a i=0; while [ ! -e $CASE_OUT/happened ]; do sleep 0.1; done
  a=$(up); while connections | grep -qx "$WAITING"; do sleep 0.1; i=$((i+1)); [ $i -gt 2400 ] && break; done
  echo "$a $(up)" | awk '{printf "%.1f\n", $2-$1}' > $CASE_OUT/noticed; echo "TIME $(cat $CASE_OUT/noticed)s until the waiting client noticed"
}
# Writes one block at a time: a write that Linux 6.12 cannot send because its buffers are full when the server fails is an error instead of being repeated (docs/kernel-lab.md).
ck mnt /mnt strict; ck mnt /mnt2 none; connections > /tmp/before; ck mnt /mnt3 none 60; WAITING=$(connections | grep -vxFf /tmp/before); [ $fail = 1 ] && { dmesg | grep -iE "cifs|siw|rdma" | tail -20; stop_capture; exit 1; }
grep -q "/mnt cifs.*persistenthandles" /proc/mounts || { say "FAIL(1): the mount is without persistent handles"; fail=1; }
head -c $((BULK_MIB * 1048576)) /dev/urandom > /tmp/bulk
/out/persist.bin hold /mnt /tmp/held /tmp/go & HOLD=$!
held() { local i=0; while [ ! -e /tmp/held ]; do sleep 0.1; i=$((i+1)); [ $i -gt 300 ] && return 1; done; return 0; }
ck held; ck /out/persist.bin try /mnt2/held
/out/persist.bin wait /mnt3/held & WAIT=$!
rm -f $CASE_OUT/happened; notice & NOTICE=$!
cp /tmp/bulk /mnt2/copied & CP=$!
/out/persist.bin copy /tmp/bulk /mnt/direct & DIRECT=$!
ck ask fail $HOW 262144 direct copied
ck wait $DIRECT; ck wait $CP; ck wait $NOTICE; ck sync /mnt2/copied
ck /out/persist.bin try /mnt2/held
ck ask status
touch /tmp/go; ck wait $HOLD; ck wait $WAIT
cp /proc/fs/cifs/DebugData $CASE_OUT/debugdata.txt
ck umount /mnt; ck mnt /mnt strict                                             # no client cache left
ck cmp -s /tmp/bulk /mnt/copied; ck cmp -s /tmp/bulk /mnt/direct; ck [ ! -e /mnt/gone ]; ck grep -q "^dirty$" /mnt/cached
ck rm /mnt/copied /mnt/direct /mnt/held /mnt/cached
ck umount /mnt; ck umount /mnt2; ck umount /mnt3
stop_capture
exit $fail
