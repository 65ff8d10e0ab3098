# args: siw|rxe IP. Programs of the RDMA API on the kernel's device: on rxe its atomic operations, on siw a plain refusal.
. /out/lib.sh
ck verbs_device $1; [ $fail = 0 ] || exit 1
ck t host_python -m pytest -q -p no:cacheprovider --timeout=0 -k "'verbs and (counter or atomic)'" tests/smbdirect/rdma/test_api.py
exit $fail
