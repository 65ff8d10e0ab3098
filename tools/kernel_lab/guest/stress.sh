# args: siw|tcp IP [mount options]. STRESS_SECONDS (20) of load through two clients at once, all content verified.
. /out/lib.sh
. /out/mounts.sh
# Linux 6.12 loses its SMB Direct connection ("ib_map_mr_sg failed") when a read starts or ends within a page that it has in its cache.
ALIGNMENT=4096; [ $1 = tcp ] && ALIGNMENT=1
two_mounts "$@"; [ $fail = 1 ] && { umount /mnt2; exit 1; }
ck mkdir /mnt/stress
ck t /out/stress.bin ${STRESS_SECONDS:-20} ${STRESS_SEED:-1} /mnt/stress /mnt2/stress $ALIGNMENT
cp /proc/fs/cifs/DebugData ${CASE_OUT:-/out}/debugdata.txt
ck rmdir /mnt2/stress; ck umount /mnt2; ck umount /mnt
exit $fail
