#!/bin/bash
# What each machine runs: the suites for one machine, or its half of the suite for two.
python=$1
if [ "$VM_MACHINES" = 1 ]; then
    suites=(tests/contract/test_transfer.py tests/contract/test_transfer_refusals.py
        tests/contract/test_transfer_crowds.py tests/contract/test_transfer_priorities.py
        tests/contract/test_transfer_failures.py tests/rdma/test_adapters.py tests/rdma/test_late.py
        tests/rdma/test_handshake.py tests/rdma/test_pinning.py)
    exec "$python" -m pytest -q -p no:cacheprovider -o faulthandler_timeout=120 --durations=10 \
        -k "rdma" "${suites[@]}"
elif [ "$VM_RANK" = 0 ]; then
    exec "$python" -m pytest -q -p no:cacheprovider -o faulthandler_timeout=120 \
        tests/rdma/test_two_machines.py
else
    exec "$python" tests/rdma/far_machine.py
fi
