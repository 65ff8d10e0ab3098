# args: siw|rxe IP. Opens and ends CHURN connections (1000) between two endpoints of ours on the kernel's RDMA device, in all possible ways.
# Leaks are counted in the process (tests/smbdirect/contract/test_churn.py) and in the kernel's RDMA subsystem.
. /out/lib.sh
ck verbs_device $1; [ $fail = 0 ] || exit 1
rdma resource > /tmp/before; cat /tmp/before
ck t host_python -m pytest -q -p no:cacheprovider --timeout=0 -m "''" -k "'verbs and ten_thousand'" tests/smbdirect/contract/test_churn.py
rdma resource > /tmp/after; cat /tmp/after; ck cmp /tmp/before /tmp/after
exit $fail
