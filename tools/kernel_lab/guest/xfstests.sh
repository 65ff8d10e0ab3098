# args: ROOT IP TEST... Runs tests of xfstests with the kernel client. Boot with HOSTROOT=1.
# ROOT on the host is the root of a Linux system with xfstests, built, in /x, its users (fsgqa, fsgqa2) and what it needs: bash, perl, xfs_io.
# Shares "test" and "scratch" of the server at IP are for the user SMBUSER (u). With IP=self they are ksmbd's in this guest.
# EXTRA has more mount options; OUT/results.txt gets a line for each test.
. /out/lib.sh
ROOT=/host$1 IP=$2; shift 2
net_user; host_root || exit 1; modprobe cifs
[ $IP = self ] && { mkdir -p /share/test /share/scratch; chmod 777 /share/*; ksmbd_start || exit 1; IP=10.0.2.15; }
for d in tmp run var/tmp; do mount -t tmpfs tmpfs $ROOT/$d; done
for d in proc sys dev; do mount --bind /$d $ROOT/$d; done
mkdir -p /dev/pts /dev/shm; mount -t devpts devpts /dev/pts; mount -t tmpfs tmpfs /dev/shm
mkdir -p $ROOT/tmp/results
options="ip=$IP,username=${SMBUSER:-u},password=${SMBPASS:-pw},vers=3.1.1,posix,modefromsid,idsfromsid${EXTRA:+,$EXTRA}"
cat > $ROOT/tmp/local.config <<END
export FSTYP=cifs TEST_DEV=//$IP/${TEST_SHARE:-test} TEST_DIR=/mnt/test SCRATCH_DEV=//$IP/${SCRATCH_SHARE:-scratch} SCRATCH_MNT=/mnt/scratch
export MOUNT_OPTIONS="-o $options" TEST_FS_MOUNT_OPTS="-o $options" RESULT_BASE=/tmp/results KEEP_DMESG=no
END
for t in "$@"; do
  chroot $ROOT /bin/bash -c "cd /x && export HOST_OPTIONS=/tmp/local.config && timeout -k 5 ${LIMIT:-90} ./check -cifs $t" < /dev/null > /tmp/one.txt 2>&1; rc=$?
  reason=$(grep -m1 "^$t" /tmp/one.txt | cut -c1-150 | tr -s ' \t' ' ')
  if grep -q "^Passed all 1 tests" /tmp/one.txt && ! grep -q "^Not run: " /tmp/one.txt; then verdict=pass
  elif grep -q "^Not run: " /tmp/one.txt; then verdict=notrun
  elif [ $rc = 124 ] || [ $rc = 137 ]; then verdict=timeout; umount -l $ROOT/mnt/scratch $ROOT/mnt/test 2>/dev/null
  else verdict=fail; fi
  echo "$verdict $t $reason" | tee -a /out/results.txt
  [ $verdict = pass ] || { mkdir -p /out/xfs; cp /tmp/one.txt /out/xfs/$(echo $t | tr / -).txt; cp $ROOT/tmp/results/cifs/*/$t.out.bad $ROOT/tmp/results/$t.out.bad /out/xfs/ 2>/dev/null; }
done
cp $ROOT/tmp/results/check.log /out/ 2>/dev/null
exit 0
