#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The example in examples/ runs and says what its comment promises; speaks TAP.
# Tensor 4 over 16 ranks leaves 4 shards: rank 6 is tensor 2 of the group 4-7, shard 1.
set -u
: "${builddir:=.}"

echo 1..2
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
