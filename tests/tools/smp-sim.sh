#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# smp-sim from outside: exit statuses, messages, files.  Speaks TAP; runs in the build tree.
set -u
: "${srcdir:=.}"
sim=${SMP_SIM:-./smp-sim}
work=$(mktemp -d "${TMPDIR:-/tmp}/smp-sim.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
small="--model $srcdir/configs/models/gpt2.json --cluster dgx-h100 --gpus 2 --seq-len 512"

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
# status EXPECTED ARGUMENT...: the exit status of smp-sim; output in out and err.
status() {
    expected=$1
    shift
    "$sim" "$@" >"$work/out" 2>"$work/err"
    found=$?
    test "$found" -eq "$expected" && return 0
    echo "status $found, expected $expected"
    cat "$work/err"
    return 1
}
# wrong MESSAGE ARGUMENT...: status 2 and one line that holds MESSAGE; nothing on output.
wrong() {
    message=$1
    shift
    status 2 "$@" || return 1
    cat "$work/err"
    test "$(wc -l <"$work/err")" -eq 1 && grep -q "^smp-sim: " "$work/err" &&
        grep -q -- "$message" "$work/err" && test ! -s "$work/out"
}
says() { grep -q -- "$1" "$work/$2"; }
# Output that cannot be written is status 1.
full_disk() {
    "$sim" "$@" >/dev/full 2>"$work/err"
    test $? -eq 1 && grep -q "^smp-sim: " "$work/err"
}
closed_pipe() {
    { "$sim" "$@" 2>"$work/err"; echo $? >"$work/status"; } | exec true
    sleep 1
    cat "$work/status" "$work/err"
    # A reader that is slow to close may still take the few bytes there are.
    case $(cat "$work/status") in 0 | 1) true ;; *) false ;; esac
}

# shellcheck disable=SC2086
{
check "help" status 0 --help
check "help names options and teaches" says "--timeline-plot" out
check "help has examples" says "smp-sim plan.json --sweep" out
check "help keeps to 80 columns" awk 'length > 80 { exit 1 }' "$work/out"
check "version" status 0 --version
check "a report" status 0 $small
check "with its parts" says "Memory of a GPU at its peak" out
cp "$work/out" "$work/first"
check "again" status 0 $small
check "gives the same bytes" cmp "$work/first" "$work/out"
check "JSON" status 0 $small --json
check "has the step" says '"step_time_s": ' out
check "explanation" status 0 $small --explain
check "names figures" says "^\[1\] " out
check "description needs a model only" status 0 --model gpt2 --describe
check "description as JSON" status 0 --model gpt2 --describe --json
check "counts parameters" says '"parameters": 124439808' out
check "ranks" status 0 $small --ranks
check "program" status 0 $small --program
check "proof" status 0 $small --verify
check "says what it proved" says "^Verified" out
check "a sweep" status 0 $small --sweep micro_batch=1,2 --sweep tensor_parallel_degree=1,5
check "shows what is not legal" says "tensor_parallel_degree 5" out
check "a job that does not fit is simulated" status 0 --model Llama-3.1-70B \
    --cluster p5.48xlarge --nodes 1 --json
check "and does not fit" says '"fits": false' out
check "the costs as JSON" status 0 $small --explain --json
check "name algorithm and bus bandwidth" says '"busbw_Bps"' out
check "for people" status 0 $small --explain
check "in the terms of nccl-tests" says "busbw" out
check "other software" status 0 $small --stack fsdp1 --json
check "is said in the settings" says '"stack": "fsdp1"' out
check "software of no known name" wrong "--stack: stack fdsp" $small --stack fdsp
check "noise, failures, a training run" status 0 $small --jitter 0.05,0.1 --rank-spread 0.01 \
    --slow-rank 1:1.2 --slow-link 0:1.1 --runs 3 --mtbf 1000 --tokens 1B
check "says what noise costs" says "step, 90 %" out
check "says what is useful" says "goodput" out
check "says how long it takes" says "GPU hours" out
check "keeps to 80 columns" awk 'length > 80 { exit 1 }' "$work/out"
cp "$work/out" "$work/first"
check "noise again" status 0 $small --jitter 0.05,0.1 --rank-spread 0.01 \
    --slow-rank 1:1.2 --slow-link 0:1.1 --runs 3 --mtbf 1000 --tokens 1B
check "gives the same bytes again" cmp "$work/first" "$work/out"
check "a lost rank" status 0 $small --lost-rank 1 --set sharding=none
check "goes on without its replica" says "going on" out
check "a lost rank of no replica" wrong "must be a rank from 0 to" $small --lost-rank 2
check "another allocator" status 0 $small --allocator caching --json
check "has its cases" says '"expandable_segments": true' out
check "an epoch" status 0 $small --lengths uniform:10,500 --sequences 40 --global-batch 2
check "has every policy" says "bucket:512" out
check "an epoch as JSON" status 0 $small --lengths uniform:10,500 --sequences 40 --json
check "no such file of lengths" wrong "no-lengths" $small --lengths "$work/no-lengths"
check "a rank that is not there" wrong "must be RANK:FACTOR" $small --slow-rank 2:2
check "no allocator" wrong "must be caching" $small --allocator arena
check "no policy" wrong "must be max_length" $small --lengths uniform:1,5 --pad most
check "no tokens" wrong "must be a number above 0" $small --tokens 0
check "a policy without lengths" wrong "need --lengths" $small --pad longest
check "a save without failures" wrong "need --mtbf" $small --save-time 3
check "too many runs" wrong "must be from 1 to 10000" $small --jitter 0.1 --runs 100000000
check "a sweep of noise" wrong "print a table" $small --sweep micro_batch=1,2 --jitter 0.1
check "an efficiency of next to nothing" wrong "from 0.01 to 1" $small --set efficiency=1e-300
check "no failures" wrong "would be kept" $small --mtbf 0
check "a trace" status 0 $small --trace "$work/trace.json"
check "has events" grep -q '"traceEvents"' "$work/trace.json"
check "a trace on standard output" status 0 $small --trace -
check "is nothing but the trace" cmp "$work/out" "$work/trace.json"
check "a memory plot without gnuplot" env PATH=/nonexistent /bin/sh -c \
    "'$sim' $small --memory-plot '$work/m.svg'; test \$? -eq 1"
check "leaves its data" test -s "$work/m.svg.dat"
check "unknown option" wrong "did you mean '--cluster'" --clustre dgx-h100
check "unknown short option" wrong "unknown option '-q'" -q
check "missing model" wrong "--model is missing" --cluster dgx-h100
check "missing cluster" wrong "--cluster is missing" --model gpt2
check "missing value" wrong "needs a value" --model
check "a flag with a value" wrong "takes no value" --json=yes
check "not a number" wrong "must be a whole number" $small --global-batch 1e3
check "negative" wrong "must be a whole number" $small --global-batch -4
check "2^64" wrong "must be a whole number" $small --global-batch 18446744073709551616
check "too many micro-batches" wrong "makes 131072 micro-batches" --model Llama-2-7B \
    --cluster p4d.24xlarge --nodes 1 --global-batch 1048576
check "a step of months" wrong "must be at most 13" --model gpt2 --cluster cpu --nodes 1 \
    --global-batch 100000
sed 's/: 1024/: 1073741824/' "$srcdir/examples/small.json" >"$work/long.json"
check "counts beyond 2^64" wrong "more than 2^64" --model "$work/long.json" --cluster dgx-h100 \
    --nodes 1 --seq-len 1073741824
check "nodes and GPUs" wrong "give one of them" $small --nodes 1
check "a plan and a model" wrong "cannot be given with a plan" plan.json --model gpt2
check "no such plan" wrong "no-such-plan" "$work/no-such-plan.json"
check "two plans" wrong "unexpected argument" a.json b.json
check "unknown setting" wrong "micro_batsh" $small --set micro_batsh=2
check "unknown sweep" wrong "neither a setting" $small --sweep micro=2
check "plot of no known kind" wrong "must end in" $small --memory-plot "$work/m.pdf"
check "full disk" full_disk $small
check "full disk, JSON" full_disk $small --json
check "closed pipe" closed_pipe $small --program
check "no such folder" status 1 $small --trace "$work/none/t.json"
}
echo "1..$number"
