# args: tcp IP [mount options]. Mounts a share that has compress = true with the option compress, and writes text, which the
# client compresses, and data that it does not. CASE_OUT gets session.pcap, the first and smaller session, and debugdata.txt
# and the server's status of the second.
# What is compressed is chosen so that Linux 6.12 does it without a fault: where the last 8 bytes of a request begin like an
# earlier place and end otherwise, its lz77_match_len counts a byte too many, and other data arrives (docs/kernel-lab.md).
# Zeros are few, as tshark 4.0 does not know matches of more than 65535 bytes.
. /out/lib.sh
P=$1 IP=$2 OPTS=$3 CASE_OUT=${CASE_OUT:-/out}
ip addr show dev eth0 | grep -q "${IP%.*}.2/" || ip addr add ${IP%.*}.2/24 dev eth0
modprobe cifs; client_credits ${CREDITS:-255}
ping -c1 -W2 $IP >/dev/null
seq 1 60000 > /tmp/text; head -c 100000 /dev/urandom > /tmp/noise; head -c 60000 /dev/zero > /tmp/zeros
yes 'a line that every other line repeats, so that Linux compresses it without a fault' | head -c 7000000 > /tmp/lines
mnt() { smb_mount $IP share /mnt rw${OPTS:+,$OPTS}; }
there_and_back() { ck dd if=/tmp/$1 of=/mnt/$1 bs=$2 oflag=direct status=none; ck dd if=/mnt/$1 of=/tmp/back bs=$2 iflag=direct status=none; ck same /tmp/$1 /tmp/back; }
rm -f /tmp/cap.pcap; tcpdump -Z root -i eth0 -s 0 -B 65536 -w /tmp/cap.pcap -U 'tcp port 445' 2>/dev/null & T=$!; capturing /tmp/cap.pcap
ck mnt
[ $fail = 1 ] && { dmesg | grep -i cifs | tail -20; kill -INT $T; exit 1; }
for f in text noise zeros; do there_and_back $f 256k; done
ck rm /mnt/text /mnt/noise /mnt/zeros; ck umount /mnt
sleep 1; kill -INT $T; wait $T; cp /tmp/cap.pcap $CASE_OUT/session.pcap

ck mnt; [ $fail = 1 ] && exit 1
ck cp /tmp/lines /mnt/cached; ck sync; echo 3 > /proc/sys/vm/drop_caches; ck same /tmp/lines /mnt/cached
there_and_back lines 4M
cp /proc/fs/cifs/DebugData $CASE_OUT/debugdata.txt
grep -i compression: /proc/fs/cifs/DebugData
if [ -n "$ASK_STATUS" ]; then   # the host puts the server's view of the same connection beside it
  : > $CASE_OUT/ask-status; i=0
  while [ -e $CASE_OUT/ask-status ] && [ $i -lt 100 ]; do sleep 0.2; i=$((i+1)); done
fi
ck rm /mnt/cached /mnt/lines; ck umount /mnt
exit $fail
