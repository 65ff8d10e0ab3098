# args: siw|rxe|tcp IP [mount options]. Mounts a share and works on it with the kernel client. The server is elsewhere
# (10.0.2.2 = the host's loopback with NET=user), or with IP=self it is ksmbd in this guest, for comparison.
# Environment: SHARE SMBUSER SMBPASS; CREDITS (255) of the client; BULK_MIB (64) per bulk transfer;
#   NETEM, what tc's netem does to the packets that this guest sends in the second session;
#   CASE_OUT (/out) for session.pcap, the first and smaller session, and debugdata.txt and stats.txt, the client's view of
#   the second; ASK_STATUS=1: wait for the host to remove CASE_OUT/ask-status once it has the server's.
. /out/lib.sh
P=$1 IP=$2 OPTS=$3 SHARE=${SHARE:-share} CASE_OUT=${CASE_OUT:-/out} BULK_MIB=${BULK_MIB:-64}
BULK_BYTES=$((BULK_MIB * 1048576)) QUARTER=$((BULK_MIB * 262144))
case $IP in 10.0.2.2|10.0.2.15|self) net_user;; *) ip addr show dev eth0 | grep -q "${IP%.*}.2" || ip addr add ${IP%.*}.2/24 dev eth0;; esac
[ $P = tcp ] && R=rw || { rdma_dev $P; R=rdma; }
CAPIF=eth0; [ $IP = 10.0.2.15 ] && CAPIF=lo; [ $IP = self ] && { ksmbd_start; IP=10.0.2.15; CAPIF=lo; }
modprobe cifs; client_credits ${CREDITS:-255}
ping -c1 -W2 $IP >/dev/null      # a cold ARP makes the first RDMA connect time out

rm -f /tmp/cap.pcap; tcpdump -Z root -i $CAPIF -s 0 -B 65536 -w /tmp/cap.pcap -U 'tcp port 5445 or tcp port 445 or udp port 4791' 2>/dev/null & T=$!; capturing /tmp/cap.pcap
stop_capture() { sleep 1; kill -INT $T; wait $T; cp /tmp/cap.pcap $CASE_OUT/session.pcap; }
mnt() { smb_mount $IP $SHARE /mnt $R${OPTS:+,$OPTS}; }
ck mnt; [ $fail = 1 ] && { dmesg | grep -iE "cifs|siw|rxe|rdma" | tail -20; stop_capture; exit 1; }
head -c 300000 /dev/urandom > /tmp/a
ck mkdir -p /mnt/d
ck cp /tmp/a /mnt/d/a300k                       # the server RDMA-Reads
ck sh -c 'echo hello > /mnt/d/small'            # below rdma_readwrite_threshold (4096): inline
ck ls -l /mnt/d
ck mv /mnt/d/a300k /mnt/d/b300k
echo 3 > /proc/sys/vm/drop_caches
ck dd if=/mnt/d/b300k of=/tmp/b bs=300000 iflag=direct,fullblock status=none    # the server RDMA-Writes
ck same /tmp/a /tmp/b; ck grep -q hello /mnt/d/small
[ "$(stat -c %s /tmp/bulk 2>/dev/null)" = $BULK_BYTES ] || head -c $BULK_BYTES /dev/urandom > /tmp/bulk
ck dd if=/tmp/bulk of=/mnt/d/big bs=4M count=1 oflag=direct status=none     # READ and WRITE as long as the client makes them
ck dd if=/mnt/d/big of=/tmp/big bs=4M iflag=direct,fullblock status=none; ck same -n 4194304 /tmp/bulk /tmp/big
ck rm /mnt/d/small; ck stat -f /mnt
ck umount /mnt
stop_capture

ck netem_on      # only from here on, so that the judge sees in the first session exactly what both ends sent
ck mnt; [ $fail = 1 ] && exit 1
ck t cp /tmp/bulk /mnt/copied; ck t sync /mnt/copied
umount /mnt; ck mnt                             # no client cache left
ck t dd if=/mnt/copied of=/tmp/back bs=1M; ck same /tmp/bulk /tmp/back
ck t dd if=/tmp/bulk of=/mnt/w4m bs=4M oflag=direct
ck t dd if=/mnt/w4m of=/tmp/back bs=4M iflag=direct; ck same /tmp/bulk /tmp/back
ck t dd if=/dev/zero of=/mnt/w4k bs=4k count=1000 oflag=direct
ck t dd if=/mnt/w4k of=/dev/null bs=4k count=1000 iflag=direct
par() {
  local jobs= r=0
  for i in 1 2 3 4; do
    (dd if=/tmp/bulk of=/mnt/p$i bs=256k count=$BULK_MIB oflag=direct 2>/dev/null && same -n $QUARTER /tmp/bulk /mnt/p$i) & jobs="$jobs $!"
  done
  for j in $jobs; do wait $j || r=$?; done; return $r
}
ck t par
reads() {   # eight at a time, each of other data, so that data of another one is seen
  local jobs= r=0
  for i in 1 2 3 4 5 6 7 8; do
    (dd if=/tmp/bulk of=/tmp/want$i bs=256k skip=$((i*3)) count=24 2>/dev/null && dd if=/mnt/copied of=/tmp/got$i bs=256k skip=$((i*3)) count=24 iflag=direct 2>/dev/null &&
      same /tmp/want$i /tmp/got$i) & jobs="$jobs $!"
  done
  for j in $jobs; do wait $j || r=$?; done; rm /tmp/want? /tmp/got?; return $r
}
ck t reads
churn() { i=0; while [ $i -lt 100 ]; do echo $i > /mnt/d/f$i && mv /mnt/d/f$i /mnt/d/g$i || return 1; i=$((i+1)); done; [ $(ls /mnt/d | grep -c '^g') = 100 ] && rm /mnt/d/g*; }
ck t churn
cp /proc/fs/cifs/DebugData $CASE_OUT/debugdata.txt
cp /proc/fs/cifs/Stats $CASE_OUT/stats.txt
grep ' /mnt ' /proc/mounts > $CASE_OUT/mount.txt
if [ -n "$ASK_STATUS" ]; then   # the host puts the server's view of the same connection beside it
  : > $CASE_OUT/ask-status; i=0
  while [ -e $CASE_OUT/ask-status ] && [ $i -lt 100 ]; do sleep 0.2; i=$((i+1)); done
fi
grep -E "SMBDirect|Conn|credits|MR |RDMA" /proc/fs/cifs/DebugData
ck rm -r /mnt/d /mnt/copied /mnt/w4m /mnt/w4k /mnt/p1 /mnt/p2 /mnt/p3 /mnt/p4; ck umount /mnt
ck netem_off
dmesg | grep -iE "WARN|BUG|Call Trace|bad |invalid|error" | grep -iE "cifs|siw|rxe|rdma|smb" | tail -20
exit $fail
