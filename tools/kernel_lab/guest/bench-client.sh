# WORKOUT for tools/kernel_lab/bench.py. args: siw|rxe IP. Mounts the shares of both servers and reads and writes them in turns.
# Environment: OURS and KSMBD, the servers' addresses; ROUNDS; FILE_MIB. Prints lines "BENCH server operation block count seconds".
. /out/lib.sh
ip addr add $2/24 dev eth0
rdma_dev $1
modprobe cifs; client_credits 255; mkdir -p /mnt2
for ip in $OURS $KSMBD; do ping -c1 -W2 $ip > /dev/null; done      # a cold ARP makes the first RDMA connect time out
ck smb_mount $OURS share /mnt rdma,cache=none
ck smb_mount $KSMBD share /mnt2 rdma,cache=none
for m in /mnt /mnt2; do ck [ "$(stat -c %s $m/big.bin)" = $((FILE_MIB * 1048576)) ]; done
[ $fail = 0 ] || { dmesg | tail -20; exit 1; }
grep -c "RDMA\|SMBDirect" /proc/fs/cifs/DebugData
now() { cut -d' ' -f1 /proc/uptime; }
one() {   # server folder operation block count
  local a=$(now)
  case $3 in
    read) dd if=$2/big.bin of=/dev/null bs=$4 count=$5 iflag=direct status=none;;
    write) dd if=/dev/zero of=$2/big.bin bs=$4 count=$5 oflag=direct conv=notrunc status=none;;
  esac || { fail=1; return; }
  echo "BENCH $1 $3 $4 $5 $(echo "$a $(now)" | awk '{printf "%.2f", $2-$1}')"
}
i=0
while [ $i -lt $ROUNDS ]; do
  for op in read write; do
    one ours /mnt $op 1048576 $FILE_MIB; one ksmbd /mnt2 $op 1048576 $FILE_MIB
    one ours /mnt $op 4096 500; one ksmbd /mnt2 $op 4096 500
  done
  i=$((i+1))
done
umount /mnt; umount /mnt2
exit $fail
