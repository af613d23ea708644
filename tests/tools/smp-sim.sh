#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# smp-sim from outside: exit statuses, messages, files.  Speaks TAP; runs in the build tree.
set -u
. "${srcdir:=.}/tests/tap.sh"
program=./smp-sim
small="--model $srcdir/configs/models/gpt2.json --cluster dgx-h100 --gpus 2 --seq-len 512"

# bad MESSAGE ARGUMENT...: wrong, with status 2 and nothing on output.
bad() {
    wrong 2 "$@" && test ! -s "$work/out"
}
# Output that cannot be written is status 1.
full_disk() {
    "$program" "$@" >/dev/full 2>"$work/err"
    test $? -eq 1 && grep -q "^smp-sim: " "$work/err"
}
closed_pipe() {
    { "$program" "$@" 2>"$work/err"; echo $? >"$work/status"; } | exec true
    sleep 1
    cat "$work/status" "$work/err"
    # A reader that is slow to close may still take the few bytes there are.
    case $(cat "$work/status") in 0 | 1) true ;; *) false ;; esac
}

# shellcheck disable=SC2086
{
check "help" ends 0 --help
check "help names options and teaches" says "--timeline-plot" out
check "help has examples" says "smp-sim plan.json --sweep" out
check "help keeps to 80 columns" awk 'length > 80 { exit 1 }' "$work/out"
check "version" ends 0 --version
check "a report" ends 0 $small
check "with its parts" says "Memory of a GPU at its peak" out
cp "$work/out" "$work/first"
check "again" ends 0 $small
check "gives the same bytes" cmp "$work/first" "$work/out"
check "JSON" ends 0 $small --json
check "has the step" says '"step_time_s": ' out
check "explanation" ends 0 $small --explain
check "names figures" says "^\[1\] " out
check "description needs a model only" ends 0 --model gpt2 --describe
check "description as JSON" ends 0 --model gpt2 --describe --json
check "counts parameters" says '"parameters": 124439808' out
check "ranks" ends 0 $small --ranks
check "program" ends 0 $small --program
check "proof" ends 0 $small --verify
check "says what it proved" says "^Verified" out
check "a sweep" ends 0 $small --sweep micro_batch=1,2 --sweep tensor_parallel_degree=1,5
check "shows what is not legal" says "tensor_parallel_degree 5" out
check "a job that does not fit is simulated" ends 0 --model Llama-3.1-70B \
    --cluster p5.48xlarge --nodes 1 --json
check "and does not fit" says '"fits": false' out
check "the costs as JSON" ends 0 $small --explain --json
check "name algorithm and bus bandwidth" says '"busbw_Bps"' out
check "for people" ends 0 $small --explain
check "in the terms of nccl-tests" says "busbw" out
check "other software" ends 0 $small --stack fsdp1 --json
check "is said in the settings" says '"stack": "fsdp1"' out
check "software of no known name" bad "--stack: stack fdsp" $small --stack fdsp
check "noise, failures, a training run" ends 0 $small --jitter 0.05,0.1 --rank-spread 0.01 \
    --slow-rank 1:1.2 --slow-link 0:1.1 --runs 3 --mtbf 1000 --tokens 1B
check "says what noise costs" says "step, 90 %" out
check "says what is useful" says "goodput" out
check "says how long it takes" says "GPU hours" out
check "keeps to 80 columns" awk 'length > 80 { exit 1 }' "$work/out"
cp "$work/out" "$work/first"
check "noise again" ends 0 $small --jitter 0.05,0.1 --rank-spread 0.01 \
    --slow-rank 1:1.2 --slow-link 0:1.1 --runs 3 --mtbf 1000 --tokens 1B
check "gives the same bytes again" cmp "$work/first" "$work/out"
check "a lost rank" ends 0 $small --lost-rank 1 --set sharding=none
check "goes on without its replica" says "going on" out
check "a lost rank of no replica" bad "must be a rank from 0 to" $small --lost-rank 2
check "another allocator" ends 0 $small --allocator caching --json
check "has its cases" says '"expandable_segments": true' out
check "an epoch" ends 0 $small --lengths uniform:10,500 --sequences 40 --global-batch 2
check "has every policy" says "bucket:512" out
check "an epoch as JSON" ends 0 $small --lengths uniform:10,500 --sequences 40 --json
check "no such file of lengths" bad "no-lengths" $small --lengths "$work/no-lengths"
check "a rank that is not there" bad "must be RANK:FACTOR" $small --slow-rank 2:2
check "no allocator" bad "must be caching" $small --allocator arena
check "no policy" bad "must be max_length" $small --lengths uniform:1,5 --pad most
check "no tokens" bad "must be a number above 0" $small --tokens 0
check "a policy without lengths" bad "need --lengths" $small --pad longest
check "a save without failures" bad "need --mtbf" $small --save-time 3
check "too many runs" bad "must be from 1 to 10000" $small --jitter 0.1 --runs 100000000
check "a sweep of noise" bad "print a table" $small --sweep micro_batch=1,2 --jitter 0.1
check "an efficiency of next to nothing" bad "from 0.01 to 1" $small --set efficiency=1e-300
check "no failures" bad "would be kept" $small --mtbf 0
check "a trace" ends 0 $small --trace "$work/trace.json"
check "has events" grep -q '"traceEvents"' "$work/trace.json"
check "a trace on standard output" ends 0 $small --trace -
check "is nothing but the trace" cmp "$work/out" "$work/trace.json"
check "a memory plot without gnuplot" env PATH=/nonexistent /bin/sh -c \
    "'$program' $small --memory-plot '$work/m.svg'; test \$? -eq 1"
check "leaves its data" test -s "$work/m.svg.dat"
check "unknown option" bad "did you mean '--cluster'" --clustre dgx-h100
check "unknown short option" bad "unknown option '-q'" -q
check "missing model" bad "--model is missing" --cluster dgx-h100
check "missing cluster" bad "--cluster is missing" --model gpt2
check "missing value" bad "needs a value" --model
check "a flag with a value" bad "takes no value" --json=yes
check "not a number" bad "must be a whole number" $small --global-batch 1e3
check "negative" bad "must be a whole number" $small --global-batch -4
check "2^64" bad "must be a whole number" $small --global-batch 18446744073709551616
check "too many micro-batches" bad "makes 131072 micro-batches" --model Llama-2-7B \
    --cluster p4d.24xlarge --nodes 1 --global-batch 1048576
check "a step of months" bad "must be at most 13" --model Llama-2-7B --cluster cpu --gpus 1 \
    --global-batch 60000
sed 's/: 1024/: 1073741824/' "$srcdir/examples/small.json" >"$work/long.json"
check "counts beyond 2^64" bad "more than 2^64" --model "$work/long.json" --cluster dgx-h100 \
    --nodes 1 --seq-len 1073741824
check "nodes and GPUs" bad "give one of them" $small --nodes 1
check "a plan and a model" bad "cannot be given with a plan" plan.json --model gpt2
check "no such plan" bad "no-such-plan" "$work/no-such-plan.json"
check "two plans" bad "unexpected argument" a.json b.json
check "unknown setting" bad "micro_batsh" $small --set micro_batsh=2
check "unknown sweep" bad "neither a setting" $small --sweep micro=2
check "plot of no known kind" bad "must end in" $small --memory-plot "$work/m.pdf"
check "full disk" full_disk $small
check "full disk, JSON" full_disk $small --json
check "closed pipe" closed_pipe $small --program
check "a trace over its model" bad "is also what is read as --model" --model "$work/long.json" \
    --cluster dgx-h100 --trace "$work/long.json"
check "two plots in one" bad "is also what --memory-plot writes" $small \
    --memory-plot "$work/m.svg" --timeline-plot "$work/m.svg"
check "a model for a plan" bad "is a model's config.json and no plan" \
    "$srcdir/examples/small.json"
check "no such folder" ends 1 $small --trace "$work/none/t.json"
}
echo "1..$number"
