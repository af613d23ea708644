#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks as processes of MPI: the conformance suite, the bits of ranks as threads, who is
# missing.  Speaks TAP; runs in the build tree; skipped where mpirun cannot start ranks.
set -u
. "${srcdir:=.}/tests/tap.sh"
# Open MPI refuses root, and more ranks than cores, unless told so.
OMPI_ALLOW_RUN_AS_ROOT=1
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
# With sanitizers: what Open MPI itself keeps until the end is not ours.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
export ASAN_OPTIONS
run() { mpirun --oversubscribe "$@"; }

if ! run -n 2 true >"$work/out" 2>&1; then
    echo "1..0 # SKIP mpirun does not start two ranks"
    exit 0
fi
tells() {
    want=$1
    shift
    "$@" >"$work/said" 2>&1
    says "$want" said
}
model="$work/tiny.json"
cat >"$model" <<END
{"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "max_position_embeddings": 64, "tie_word_embeddings": false}
END
job="--model $model --cluster cpu --gpus 4 --seq-len 16 --global-batch 8 --set precision=fp32 \
--set tensor_parallel_degree=2 --set micro_batch=2 --data $srcdir/LICENSE --steps 3"
experts="$work/experts.json"
cat >"$experts" <<END
{"model_type": "mixtral", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "max_position_embeddings": 64, "num_local_experts": 4}
END
expert_job="--model $experts --cluster cpu --gpus 4 --seq-len 16 --global-batch 8 \
--set precision=fp32 --set tensor_parallel_degree=2 --set expert_parallel_degree=2 \
--set moe_rows_factor=4 --set micro_batch=2 --data $srcdir/LICENSE --steps 3"
# Everything but the time.
losses() { sed 's/, "seconds".*//' "$1"; }
same_bits() {
    # shellcheck disable=SC2086
    ./smp-exec $1 --metrics "$work/threads" >/dev/null || return 1
    # shellcheck disable=SC2086
    run -n 4 ./smp-exec $1 --metrics "$work/mpi" >/dev/null || return 1
    losses "$work/threads" >"$work/a"
    losses "$work/mpi" >"$work/b"
    test -s "$work/a" && cmp "$work/a" "$work/b"
}

# Rank 1 is killed from outside once it trains; the others must not wait for it.
# shellcheck disable=SC2086,SC2016
killed() {
    timeout 60 mpirun --oversubscribe -n 4 sh -c '
        if test "$OMPI_COMM_WORLD_RANK" = 1; then
            "$@" & process=$!
            sleep 2
            kill -s KILL $process
            wait $process
        else
            exec "$@"
        fi' sh ./smp-exec $job --steps 1000000 >"$work/said" 2>&1
    found=$?
    tail -n 5 "$work/said"
    test "$found" -ne 0 && test "$found" -ne 124
}

# Each rank finds that there are no data; no bar is drawn where lines go to a file.
said_once() {
    # shellcheck disable=SC2086
    run -n 4 ./smp-exec $job --data "$work/none" >"$work/said" 2>&1
    found=$?
    cat "$work/said"
    test "$found" -eq 2 && test "$(grep -c 'none: No such file' "$work/said")" -eq 1
}
no_bar() {
    # shellcheck disable=SC2086
    run -n 4 ./smp-exec $job >"$work/said" 2>&1 || return 1
    cat -v "$work/said"
    grep -q '^step 3 ' "$work/said" && ! grep -q ' left' "$work/said"
}

echo 1..10
check "two ranks conform" run -n 2 tests/exec/check_mpi
check "three ranks conform" run -n 3 tests/exec/check_mpi
check "ranks as processes train to the bits of ranks as threads" same_bits "$job"
check "so they do with rows exchanged between expert ranks" same_bits "$expert_job"
check "a killed rank takes the others down" killed
check "who is missing is named" tells "group all (ranks 0 1 2): not arrived: 2" \
    run -n 3 tests/exec/check_mpi late
# shellcheck disable=SC2086
check "a plan for other ranks is refused" tells "the plan is for 4 ranks, 2 were started" \
    run -n 2 ./smp-exec $job
check "what every rank finds is said once" said_once
check "no bar is drawn into a file" no_bar
# shellcheck disable=SC2086
check "ranks with different options" tells "different plans, data or options" \
    run -n 2 ./smp-exec $job --lr 1e-3 : -n 2 ./smp-exec $job --lr 1e-2
