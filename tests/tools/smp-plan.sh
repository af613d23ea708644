#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# smp-plan from outside: exit statuses, output, files.  Speaks TAP; runs in the build tree.
set -u
: "${srcdir:=.}"
plan=${SMP_PLAN:-./smp-plan}
work=$(mktemp -d "${TMPDIR:-/tmp}/smp-plan.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
small="--model $srcdir/configs/models/gpt2.json --cluster dgx-h100 --gpus 2 --seq-len 512 \
--global-batch 16"

number=0
# check NAME COMMAND...: the command must succeed.
check() {
    number=$((number + 1))
    name=$1
    shift
    if "$@" >"$work/check" 2>&1; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        sed 's/^/# /' "$work/check"
    fi
}
# status EXPECTED ARGUMENT...: the exit status of smp-plan; output in out and err.
status() {
    expected=$1
    shift
    "$plan" "$@" >"$work/out" 2>"$work/err"
    found=$?
    test "$found" -eq "$expected" && return 0
    echo "status $found, expected $expected"
    cat "$work/err"
    return 1
}
says() { grep -q -- "$1" "$work/$2"; }
one_line() { test "$(wc -l <"$work/err")" -eq 1; }

echo 1..33
check "help" status 0 --help
check "help names the options" says --pareto out
check "version" status 0 --version
# shellcheck disable=SC2086
check "a small search" status 0 $small
check "says that nothing is better" says "gap 0: nothing is better" out
cp "$work/out" "$work/first"
# shellcheck disable=SC2086
check "the same search" status 0 $small
check "prints the same bytes" cmp "$work/first" "$work/out"
# shellcheck disable=SC2086
check "JSON and a plan file" status 0 $small --json -o "$work/plan.json" --export smp-v2 \
    "$work/smp.json"
check "JSON has the search" says '"exhausted": true' out
check "the plan file is there" grep -q '"smp_plan": 1' "$work/plan.json"
# shellcheck disable=SC2086
check "what was exported pins the plan" status 0 $small --smp "$work/smp.json"
check "which is then the only one" says "^1 configurations" out
# shellcheck disable=SC2086
check "for other software" status 0 $small --stack megatron --json -o "$work/megatron.json"
check "recommends what it has" says '"sharding": "optimizer"' out
check "the plan file knows it" grep -q '"stack": "megatron"' "$work/megatron.json"
# shellcheck disable=SC2086
check "too large: nothing fits" status 3 --model "$srcdir/configs/models/Llama-3.1-405B.json" \
    --cluster p5.48xlarge --nodes 1 --seq-len 4096 --global-batch 8
check "what it lacks" says "lacks" err
# shellcheck disable=SC2086
check "an unknown option" status 2 $small --pinn checkpointing=none
check "in one line" one_line
# shellcheck disable=SC2086
check "a deadline" status 0 $small --deadline 1s
# shellcheck disable=SC2086
check "that is no time" status 2 $small --deadline soon
# shellcheck disable=SC2086
check "an unknown objective" status 2 $small --objective beauty
# shellcheck disable=SC2086
check "a pin that no configuration keeps" status 2 $small --pin tensor_parallel_degree=7
# shellcheck disable=SC2086
check "a plot of no known kind" status 2 $small --pareto "$work/front.pdf"
check "is told before the search" test ! -s "$work/out"
# shellcheck disable=SC2086
check "a file that cannot be written" status 1 $small -o "$work/none/plan.json"
run="--model $srcdir/configs/models/gpt2.json --cluster p5.48xlarge --seq-len 256 \
--global-batch 8 --gpus 1,2 --pin checkpointing=none --tokens 1B"
# shellcheck disable=SC2086
check "a run on one GPU or two" status 0 $run --within 1d -o "$work/run.json"
check "recommends one" says "Recommended: 1 GPU of p5.48xlarge, the cheapest" out
# shellcheck disable=SC2086
check "a run in no time" status 3 $run --within 1s
# shellcheck disable=SC2086
check "a time without its unit" status 2 $run --within 30
check "in one line again" one_line
if test -c /dev/full; then
    # shellcheck disable=SC2086
    check "a full disk" status 1 $small -o /dev/full
    check "says why" says "/dev/full: writing failed: No space left on device" err
else
    number=$((number + 2))
    echo "ok $((number - 1)) - a full disk # SKIP no /dev/full"
    echo "ok $number - says why # SKIP no /dev/full"
fi
