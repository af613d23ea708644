#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A small model learns this project's sources: the curve of the README, docs/learning.svg.
#
#     bench/learn.sh [STEPS] [OUTPUT.svg]
#
# Trains examples/small.json (0.9 million parameters, a byte a token) on src/, two ranks, and
# validates on tests/.  Run it in the build tree; 400 steps take some minutes on two cores.
# The same sources give the same losses.
set -e
srcdir=${srcdir:-.}
steps=${1:-400}
output=${2:-$srcdir/docs/learning.svg}
work=$(mktemp -d "${TMPDIR:-/tmp}/smp-learn.XXXXXX")
trap 'rm -rf "$work"' EXIT
files() { find "$srcdir/$1" -name '*.[ch]' | LC_ALL=C sort; }

# Names of source files have no blanks.
# shellcheck disable=SC2046
./smp-data encode $(files src) --eot 256 -o "$work/train.bin"
# shellcheck disable=SC2046
./smp-data encode $(files tests) --eot 256 -o "$work/val.bin"
./smp-plan --model "$srcdir/examples/small.json" --cluster cpu --gpus 2 --seq-len 128 \
    --global-batch 16 --pin precision=fp32 -o "$work/plan.json" >/dev/null
./smp-exec "$work/plan.json" --data "$work/train.bin" --eval "$work/val.bin" --eot 256 \
    --eval-every $((steps / 10)) --steps "$steps" --lr 3e-3 --warmup $((steps / 20)) \
    --min-lr 3e-4 --schedule cosine --metrics "$work/run.jsonl"
{
    sed -n 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/p' "$work/run.jsonl"
    printf '\n\n'
    sed -n 's/.*"step": \([0-9]*\), "validation_loss": \([^,]*\),.*/\1 \2/p' "$work/run.jsonl"
} >"$work/curve.dat"
gnuplot -c "$srcdir/plots/learning.gp" "$work/curve.dat" "$output" svg
