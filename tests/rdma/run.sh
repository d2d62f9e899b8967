#!/bin/bash
# run.sh [PYTHON]: the rdma transport on real verbs, in virtual machines with soft-RoCE (see vm.sh):
# contract suite, failover and hostile bytes on one machine, then two machines. The last line says
# how it went; a machine that cannot start is a failure like any other. About five minutes.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$(realpath -s "${1:-$root/.venv/bin/python}")
started=$SECONDS
work=$(mktemp -d /tmp/moonpool-rdma.XXXXXX)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' TERM INT

# A copy: what changes under a running machine reads as garbage there.
mkdir "$work/tree"
(cd "$root" && find libs/moonpool tests/contract tests/support tests/rdma pyproject.toml \
    -name __pycache__ -prune -o -type f -print | tar -cf - -T - | tar -xf - -C "$work/tree")
cd "$work/tree" || exit

result=0
for kind in one two; do
    options=(-t 420)
    [ $kind = one ] || options=(-n -t 240)
    status=0
    bash tests/rdma/vm.sh "${options[@]}" -o "$work/$kind" -- \
        bash tests/rdma/machine.sh "$python" || status=$?
    case $status in
    0) said=passed ;;
    124) said="took too long" ;;
    125) said="the machine died" ;;
    126) said="the machine could not be set up" ;;
    *) said="failed ($status)" ;;
    esac
    echo "rdma: $kind machine(s): $said"
    [ $status = 0 ] || result=1
done
if [ $result = 0 ]; then
    echo "rdma on real verbs: passed in $((SECONDS - started)) s"
else
    echo "rdma on real verbs: FAILED after $((SECONDS - started)) s"
fi
exit $result
