# args: tcp IP [mount options]. Mounts a share that has compress = true with the option compress, and writes text, which the
# client compresses, and data that it does not. CASE_OUT gets session.pcap, debugdata.txt and the server's status.
. /out/lib.sh
P=$1 IP=$2 OPTS=$3 CASE_OUT=${CASE_OUT:-/out}
ip addr show dev eth0 | grep -q "${IP%.*}.2/" || ip addr add ${IP%.*}.2/24 dev eth0
modprobe cifs; client_credits ${CREDITS:-255}
ping -c1 -W2 $IP >/dev/null
seq 1 1000000 > /tmp/text; head -c 300000 /dev/urandom > /tmp/noise; head -c 1000000 /dev/zero > /tmp/zeros
rm -f /tmp/cap.pcap; tcpdump -Z root -i eth0 -s 0 -B 65536 -w /tmp/cap.pcap -U 'tcp port 445' 2>/dev/null & T=$!; capturing /tmp/cap.pcap
ck smb_mount $IP share /mnt rw${OPTS:+,$OPTS}
[ $fail = 1 ] && { dmesg | grep -i cifs | tail -20; kill -INT $T; exit 1; }
for f in text noise zeros; do
  ck dd if=/tmp/$f of=/mnt/$f bs=256k oflag=direct status=none; ck cp /tmp/$f /mnt/$f.cached
done
ck sync; echo 3 > /proc/sys/vm/drop_caches
for f in text noise zeros; do
  ck cmp -s /tmp/$f /mnt/$f.cached; ck dd if=/mnt/$f of=/tmp/back bs=1M iflag=direct status=none; ck cmp -s /tmp/$f /tmp/back
done
cp /proc/fs/cifs/DebugData $CASE_OUT/debugdata.txt
grep -i compression /proc/fs/cifs/DebugData
if [ -n "$ASK_STATUS" ]; then   # the host puts the server's view of the same connection beside it
  : > $CASE_OUT/ask-status; i=0
  while [ -e $CASE_OUT/ask-status ] && [ $i -lt 100 ]; do sleep 0.2; i=$((i+1)); done
fi
ck rm /mnt/text /mnt/noise /mnt/zeros /mnt/text.cached /mnt/noise.cached /mnt/zeros.cached; ck umount /mnt
sleep 1; kill -INT $T; wait $T; cp /tmp/cap.pcap $CASE_OUT/session.pcap
exit $fail
