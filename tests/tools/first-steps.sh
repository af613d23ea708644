#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What README.md and the manual tell a user to ask of a plan: each command works on the plan that
# they make, and a what-if on a plan is the same as one from its parts.  Speaks TAP; runs in the
# build tree.
set -u
. "${srcdir:=.}/tests/tap.sh"
sim=./smp-sim
plan=./smp-plan
job="--model $srcdir/configs/models/Llama-3.1-70B.json --cluster dgx-h100 --nodes 8
     --seq-len 8192 --global-batch 512"

# what_if ARGUMENT...: of the plan.
what_if() {
    "$sim" "$work/plan.json" "$@" >"$work/out" 2>"$work/err" || { cat "$work/err"; return 1; }
}
# The step of the plan under other software, and that of the same settings without the plan,
# whose values that a rule gave would be held against the software.
same_without_plan() {
    what_if --json "$@" || return 1
    grep '"step_time_s"' "$work/out" >"$work/with"
    # shellcheck disable=SC2086
    "$sim" $job --set hybrid_shard_degree=64 --set micro_batch=8 --set checkpointing=full \
        --json "$@" 2>/dev/null | grep '"step_time_s"' >"$work/without"
    cat "$work/with" "$work/without"
    test -s "$work/with" && cmp "$work/with" "$work/without"
}

# shellcheck disable=SC2086
check "a plan" "$plan" $job --pin micro_batch=8 --pin offload=true -o "$work/plan.json"
check "predicted" what_if
check "what if nothing is recomputed" what_if --set checkpointing=none
check "offloading of the plan gives way, and that is said" says "does not act" err
check "offloading that is asked for does not" sh -c \
    "! '$sim' '$work/plan.json' --set checkpointing=none --set offload=true 2>&1"
check "a sweep" what_if --set hybrid_shard_degree=0 --sweep micro_batch=1,2 \
    --sweep tensor_parallel_degree=2,4
check "other software, compiled" what_if --stack fsdp2 --set compile=true
check "is named" says "run by fsdp2, compiled" out
check "fsdp1 has its own defaults on a plan" same_without_plan --stack fsdp1 --set offload=false
check "fsdp2 has" same_without_plan --stack fsdp2
check "deepspeed has" same_without_plan --stack deepspeed
check "a setting that is given beside it holds" same_without_plan --stack fsdp2 \
    --set efficiency=0.9
check "tensor parallelism brings its sequence_parallel" same_without_plan \
    --set offload=false --set tensor_parallel_degree=8 --set hybrid_shard_degree=8
echo "1..$number"
