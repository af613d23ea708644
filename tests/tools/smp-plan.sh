#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# smp-plan from outside: exit statuses, output, files.  Speaks TAP; runs in the build tree.
set -u
. "${srcdir:=.}/tests/tap.sh"
program=./smp-plan
small="--model $srcdir/configs/models/gpt2.json --cluster dgx-h100 --gpus 2 --seq-len 512 \
--global-batch 16"

echo 1..35
check "help" ends 0 --help
check "help names the options" says --pareto out
check "version" ends 0 --version
# shellcheck disable=SC2086
check "a small search" ends 0 $small
check "says that nothing is better" says "gap 0: nothing is better" out
cp "$work/out" "$work/first"
# shellcheck disable=SC2086
check "the same search" ends 0 $small
check "prints the same bytes" cmp "$work/first" "$work/out"
# shellcheck disable=SC2086
check "JSON and a plan file" ends 0 $small --json -o "$work/plan.json" --export smp-v2 \
    "$work/smp.json"
# shellcheck disable=SC2086
alone() {
    "$program" $small -o - 2>"$work/err" | cmp - "$work/plan.json" && says "Why not" err
}
check "a plan on standard output is alone there" alone
check "JSON has the search" says '"exhausted": true' out
check "the plan file is there" grep -q '"smp_plan": 1' "$work/plan.json"
# shellcheck disable=SC2086
check "what was exported pins the plan" ends 0 $small --smp "$work/smp.json"
check "which is then the only one" says "^1 configurations" out
# shellcheck disable=SC2086
check "for other software" ends 0 $small --stack megatron --json -o "$work/megatron.json"
check "recommends what it has" says '"sharding": "optimizer"' out
check "the plan file knows it" grep -q '"stack": "megatron"' "$work/megatron.json"
# shellcheck disable=SC2086
check "too large: nothing fits" ends 3 --model "$srcdir/configs/models/Llama-3.1-405B.json" \
    --cluster p5.48xlarge --nodes 1 --seq-len 4096 --global-batch 8
check "what it lacks" says "lacks" err
# shellcheck disable=SC2086
check "an unknown option" wrong 2 "unknown option" $small --pinn checkpointing=none
# shellcheck disable=SC2086
check "a deadline" ends 0 $small --deadline 1s
# shellcheck disable=SC2086
check "that is no time" ends 2 $small --deadline soon
# shellcheck disable=SC2086
check "an unknown objective" ends 2 $small --objective beauty
# shellcheck disable=SC2086
check "a pin that no configuration keeps" ends 2 $small --pin tensor_parallel_degree=7
# shellcheck disable=SC2086
check "a plot of no known kind" ends 2 $small --pareto "$work/front.pdf"
check "is told before the search" test ! -s "$work/out"
# shellcheck disable=SC2086
check "a file that cannot be written" ends 1 $small -o "$work/none/plan.json"
run="--model $srcdir/configs/models/gpt2.json --cluster p5.48xlarge --seq-len 256 \
--global-batch 8 --gpus 1,2 --pin checkpointing=none --tokens 1B"
# shellcheck disable=SC2086
check "a run on one GPU or two" ends 0 $run --within 1d -o "$work/run.json"
check "recommends one" says "Recommended: 1 GPU of p5.48xlarge, the cheapest" out
# shellcheck disable=SC2086
check "a run in no time" ends 3 $run --within 1s
# shellcheck disable=SC2086
check "a time without its unit" wrong 2 "--within: .30.: must be" $run --within 30
# shellcheck disable=SC2086
check "an output that is an input" wrong 2 "is also what is read as --smp" $small \
    --smp "$work/smp.json" --export smp-v2 "$work/smp.json"
# shellcheck disable=SC2086
check "two outputs in one" wrong 2 "is also what -o writes: give another --export" $small \
    -o "$work/one" --export smp-v2 "$work/one"
# shellcheck disable=SC2086
check "a margin that leaves nothing" wrong 2 "--margin: '100': must be a number from 0 to less" \
    $small --margin 100
if test -c /dev/full; then
    # shellcheck disable=SC2086
    check "a full disk" ends 1 $small -o /dev/full
    check "says why" says "/dev/full: writing failed: No space left on device" err
else
    number=$((number + 2))
    echo "ok $((number - 1)) - a full disk # SKIP no /dev/full"
    echo "ok $number - says why # SKIP no /dev/full"
fi
