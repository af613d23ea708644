#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The examples in examples/ run and say what their comments promise; speaks TAP.
# Tensor 4 over 16 ranks leaves 4 shards: rank 6 is tensor 2 of the group 4-7, shard 1.
set -u
: "${builddir:=.}"

echo 1..4
output=$("$builddir/examples/groups" 6 2>&1)
status=$?
expected='rank 6 of 16: tensor 2, shard 1 of 4
tensor        4 5 6 7
shard         2 6 10 14
replica       6'
last=$(printf '%s\n' "$output" | sed -n '$p')
case $last in
"step "*" s, "*" GiB of "*" GiB: fits") simulated=yes ;;
*) simulated=no ;;
esac
if [ "$status" -eq 0 ] && [ "$(printf '%s\n' "$output" | sed '$d')" = "$expected" ] &&
    [ "$simulated" = yes ]; then
    echo "ok 1 - the example prints groups and simulates"
else
    echo "not ok 1 - the example prints groups and simulates"
    printf '%s\n' "$output" | sed 's/^/# /'
fi
if [ "$("$builddir/examples/groups" 6 2>&1)" = "$output" ]; then
    echo "ok 2 - the same again"
else
    echo "not ok 2 - the same again"
fi
found=$("$builddir/examples/best" micro_batch=1 2>&1)
status=$?
case $found in
*"Llama-3.1-8B"*"best of "*" s a step") planned=yes ;;
*) planned=no ;;
esac
if [ "$status" -eq 0 ] && [ "$planned" = yes ]; then
    echo "ok 3 - the other plans, simulates and prints"
else
    echo "not ok 3 - the other plans, simulates and prints"
    printf '%s\n' "$found" | sed 's/^/# /'
fi
found=$("$builddir/examples/best" tensor_parallel_degree=7 2>&1)
status=$?
if [ "$status" -eq 2 ]; then
    echo "ok 4 - and says what is wrong"
else
    echo "not ok 4 - and says what is wrong"
    printf '%s\n' "$found" | sed 's/^/# /'
fi
