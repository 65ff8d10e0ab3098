# args: the repository's folder. The tests of quotas, on a kernel that has them (HOSTROOT=1, modules in /out/modules)
. /out/lib.sh
for m in crc32c_generic libcrc32c crc16 mbcache jbd2 quota_tree quota_v2 ext4 xfs loop; do
  insmod /out/modules/$m.ko || fail=1
done
ck host_root
cd /
chroot /host sh -c "cd '$1' && HOME=/tmp PYTHONDONTWRITEBYTECODE=1 .venv/bin/python -m pytest -p no:cacheprovider -o addopts= \
  tests/system/interop/test_smbcquotas.py -k kernel_enforces -q -rs > /tmp/quotas.txt 2>&1; echo \$? > /tmp/quotas.rc"
cat /host/tmp/quotas.txt
grep -q skipped /host/tmp/quotas.txt && fail=1
[ "$(cat /host/tmp/quotas.rc)" = 0 ] || fail=1
exit $fail
