# args: siw|tcp IP [mount options]. Checks that two clients on one share see each other's changes immediately, cached data included.
. /out/lib.sh
. /out/mounts.sh
CASE_OUT=${CASE_OUT:-/out} A=/mnt/two B=/mnt2/two
case $2 in 10.0.2.2|10.0.2.15|self) net_user;; *) ip addr show dev eth0 | grep -q "${2%.*}.2/" || ip addr add ${2%.*}.2/24 dev eth0;; esac
rm -f /tmp/cap.pcap; tcpdump -Z root -i eth0 -s 0 -B 65536 -w /tmp/cap.pcap -U 'tcp port 5445 or tcp port 445' 2>/dev/null & T=$!; capturing /tmp/cap.pcap
two_mounts "$@"; [ $fail = 1 ] && { umount /mnt2; kill -INT $T; exit 1; }
head -c 400000 /dev/urandom > /tmp/x; head -c 400000 /dev/urandom > /tmp/y
ck mkdir $A
ck cp /tmp/x $A/f; ck same /tmp/x $B/f                                  # A's handle and lease outlive its close for a while
ck cp /tmp/y $B/f; ck same /tmp/y $A/f; ck same /tmp/y $B/f
held() { exec 3<>$A/h && echo one >&3 && [ "$(cat $B/h)" = one ] && echo two >&3 && [ "$(tail -n1 $B/h)" = two ] && exec 3>&-; }
ck held                                                                 # data that A holds back under its write lease
dirty() {   # the data that the client sends on the break of a write lease is there for the open that waited for it
  local i=0
  while [ $i -lt 20 ]; do exec 3>$A/w && cat /tmp/x >&3 && cmp -s /tmp/x $B/w && exec 3>&- && rm $A/w || return 1; i=$((i+1)); done
}
ck dirty
reader() { exec 4<$B/f && head -c 10 <&4 >/dev/null && cp /tmp/x $A/f && exec 4<&- && cmp -s /tmp/x $B/f; }
ck reader                                                               # B's read cache ends when A writes
turns() { local i=0; : > $A/t; while [ $i -lt 10 ]; do echo a$i >> $A/t; echo b$i >> $B/t; i=$((i+1)); done; [ $(wc -l < $A/t) = 20 ] && cmp -s $A/t $B/t && [ "$(sed -n 20p $A/t)" = b9 ]; }
ck turns
names() { mkdir $A/d && [ -d $B/d ] && echo n > $B/d/n && mv $A/d/n $A/d/m && [ ! -e $B/d/n ] && grep -q n $B/d/m && [ "$(ls $B/d)" = m ] && rm $B/d/m && [ -z "$(ls $A/d)" ] && rmdir $A/d && [ ! -e $B/d ]; }
ck names
size() { truncate -s 1000 $A/f && [ $(stat -c %s $B/f) = 1000 ] && head -c 1000 /tmp/x | cmp -s - $B/f && truncate -s 500000 $B/f && [ $(stat -c %s $A/f) = 500000 ] && [ $(wc -c < $A/f) = 500000 ]; }
ck size
ck /out/stress.bin locks $A/l $B/l                                                                # a lock of A's keeps B out until A releases it
cp /proc/fs/cifs/DebugData $CASE_OUT/debugdata.txt
ck rm -r $B; ck [ ! -e $A ]
ck umount /mnt2; ck umount /mnt
sleep 1; kill -INT $T; wait $T; cp /tmp/cap.pcap $CASE_OUT/session.pcap
exit $fail
