# args: siw|tcp IP [mount options]. A copy through persistent handles goes on while the server fails and comes back; locks, and a file that lost its name,
# are as they were. Environment: HOW, what the host does to the server (kill, stop, cut) once the copy has begun; BULK_MIB (64) of the copy.
# Leaves CASE_OUT/session.pcap, debugdata.txt. The host leaves failure.json and status.json.
. /out/lib.sh
P=$1 IP=$2 OPTS=$3 CASE_OUT=${CASE_OUT:-/out} BULK_MIB=${BULK_MIB:-64} R=rw
case $IP in 10.0.2.2) net_user;; *) ip addr show dev eth0 | grep -q "${IP%.*}.2/" || ip addr add ${IP%.*}.2/24 dev eth0;; esac
[ $P = tcp ] || { R=rdma; rdma_dev $P; }
modprobe cifs; client_credits ${CREDITS:-255}; mkdir -p /mnt2; rm -f /tmp/go /tmp/held
ping -c1 -W2 $IP >/dev/null      # a cold ARP makes the first RDMA connect time out
ask() {   # WHAT [WORDS]: have the host do it; it says what is wrong in failed-WHAT
  local what=$1 i=0; shift; rm -f $CASE_OUT/failed-$what
  echo "$*" > $CASE_OUT/new-$what; mv $CASE_OUT/new-$what $CASE_OUT/ask-$what
  while [ -e $CASE_OUT/ask-$what ]; do sleep 0.1; i=$((i+1)); [ $i -gt 1200 ] && return 1; done
  [ ! -e $CASE_OUT/failed-$what ] || { cat $CASE_OUT/failed-$what; return 1; }
}
tcpdump -Z root -i eth0 -s 0 -B 65536 -w /tmp/cap.pcap -U 'tcp port 5445 or tcp port 445' 2>/dev/null & T=$!; sleep 1
stop_capture() { sleep 1; kill -INT $T; wait $T; cp /tmp/cap.pcap $CASE_OUT/session.pcap; }
mnt() { smb_mount $IP share $1 $R,persistenthandles,hard,nosharesock,cache=$2,echo_interval=1,handletimeout=20000${OPTS:+,$OPTS}; }
# Writes one at a time: a write that Linux 6.12 cannot send, its buffers being full as the server goes, fails instead of being repeated (docs/kernel-lab.md).
ck mnt /mnt strict; ck mnt /mnt2 none; [ $fail = 1 ] && { dmesg | grep -iE "cifs|siw|rdma" | tail -20; stop_capture; exit 1; }
grep -q "/mnt cifs.*persistenthandles" /proc/mounts || { say "FAIL(1): the mount is without persistent handles"; fail=1; }
head -c $((BULK_MIB * 1048576)) /dev/urandom > /tmp/bulk
/out/persist.bin hold /mnt /tmp/held /tmp/go & HOLD=$!
held() { local i=0; while [ ! -e /tmp/held ]; do sleep 0.1; i=$((i+1)); [ $i -gt 300 ] && return 1; done; return 0; }
ck held; ck /out/persist.bin try /mnt2/held
cp /tmp/bulk /mnt2/copied & CP=$!
/out/persist.bin copy /tmp/bulk /mnt/direct & DIRECT=$!
ck ask fail $HOW 262144 direct copied
ck wait $DIRECT; ck wait $CP; ck sync /mnt2/copied
ck /out/persist.bin try /mnt2/held
ck ask status
touch /tmp/go; ck wait $HOLD
cp /proc/fs/cifs/DebugData $CASE_OUT/debugdata.txt
ck umount /mnt; ck mnt /mnt strict                                             # no client cache left
ck cmp -s /tmp/bulk /mnt/copied; ck cmp -s /tmp/bulk /mnt/direct; ck [ ! -e /mnt/gone ]; ck grep -q "^dirty$" /mnt/cached
ck rm /mnt/copied /mnt/direct /mnt/held /mnt/cached
ck umount /mnt; ck umount /mnt2
stop_capture
exit $fail
