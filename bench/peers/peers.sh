#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# GPT-2 124M on the processor, fp32, 4 sequences of 64 and of 256 tokens: smp-exec beside
# PyTorch and llm.c, in one run.  See README.md here; run it in the build tree.
#
#     bench/peers/peers.sh [-t THREADS] [-s STEPS] [-r ROUNDS] [-p PYTHON] [-l LLMC] [TOKENS...]
#
# PYTHON is an interpreter that has torch, LLMC a directory of llm.c with gpt2_124M.bin and its
# data.  What is not given is left out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
threads=$(getconf _NPROCESSORS_ONLN)
steps=6
rounds=3
python=
llmc=
fail() {
    echo "peers.sh: $1" >&2
    exit 2
}
while getopts t:s:r:p:l: option; do
    case $option in
    t) threads=$OPTARG ;;
    s) steps=$OPTARG ;;
    r) rounds=$OPTARG ;;
    p) python=$OPTARG ;;
    l) llmc=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
test $# -gt 0 || set -- 64 256
test -x ./smp-exec || fail "run it where smp-exec was built"
test "$steps" -gt 2 || fail "-s $steps: the first two steps do not count; give more"
if test -n "$python"; then
    "$python" -c 'import torch' 2>/dev/null || fail "$python has no torch"
fi
if test -n "$llmc"; then
    test -d "$llmc" || fail "$llmc: no such directory; -l takes a checkout of llm.c"
    for file in train_gpt2.c gpt2_124M.bin; do
        test -f "$llmc/$file" || fail "$llmc/$file is not there; llm.c's README says how to get it"
    done
fi
# Threads of BLAS libraries that PyTorch may be linked with, and of its own loops.
OMP_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads MKL_NUM_THREADS=$threads
export OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS
work=$(mktemp -d "${TMPDIR:-/tmp}/smp-peers.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
cat >"$work/gpt2.json" <<END
{"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12,
 "n_positions": 1024, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
END

median() {
    sort -g | awk '{ x[NR] = $1 }
        END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'
}
# Each writes the seconds of its steps to $work/times.
time_smp() {
    ./smp-exec --model "$work/gpt2.json" --cluster cpu --gpus 1 --seq-len "$1" \
        --global-batch 4 --set precision=fp32 --set micro_batch=4 --threads "$threads" \
        --data "$here/../../LICENSE" --steps "$steps" --metrics "$work/m" >/dev/null
    sed -n 's/.*"seconds": \([0-9.]*\).*/\1/p' "$work/m" >"$work/times"
}
time_torch() {
    "$python" "$here/gpt2_torch.py" 4 "$1" "$steps" "$threads" >"$work/out"
    grep '^#' "$work/out" >"$work/torch.about"
    grep -v '^#' "$work/out" >"$work/times"
}
# llm.c has its shape, its number of steps and the length of its sample in the source.
time_llmc() {
    sed -e "s/int T = 64;/int T = $1;/" -e "s/step <= 40;/step < $steps;/" \
        -e 's/int genT = 64;/int genT = 1;/' "$llmc/train_gpt2.c" >"$work/train.c"
    "${CC:-cc}" -O3 -Ofast -march=native -fopenmp -Wno-unused-result -I"$llmc" \
        "$work/train.c" -lm -o "$work/train" 2>"$work/cc" || { cat "$work/cc" >&2; return 1; }
    (cd "$llmc" && "$work/train") >"$work/out"
    sed -n 's/^step .*(took \([0-9.]*\) ms).*/\1/p' "$work/out" |
        awk '{ print $1 / 1000 }' >"$work/times"
}
# The programs take turns: what else the host does falls on all of them.  Of each round the
# median of the steps, without the first two, which touch memory for the first time.
time_round() { # NAME T
    "time_$1" "$2"
    tail -n +3 "$work/times" | median >>"$work/$1.$2"
}
report() { # NAME LABEL T
    seconds=$(median <"$work/$1.$3")
    paste "$work/$1.$3" "$work/smp.$3" | awk '{ print $1 / $2 }' | sort -g >"$work/ratios"
    awk -v name="$2" -v s="$seconds" -v t="$3" -v ratio="$(median <"$work/ratios")" '
        { low = NR == 1 ? $1 : low; high = $1 }
        END { printf "  %-10s %8.3f s  %8.0f tokens/s  %5.2f x smp-exec (%.2f to %.2f)\n",
                     name, s, 4 * t / s, ratio, low, high }' "$work/ratios"
}

echo "GPT-2 124M, B=4, fp32, $threads threads; medians of $rounds rounds of $((steps - 2)) steps"
sed -n 's/^model name[[:space:]]*: /processor: /p' /proc/cpuinfo 2>/dev/null | sort -u
echo "OPENBLAS_CORETYPE: ${OPENBLAS_CORETYPE:-unset}; load: $(uptime | sed 's/.*average[s]*: *//')"
for seq in "$@"; do
    for round in $(seq "$rounds"); do
        time_round smp "$seq"
        test -z "$python" || time_round torch "$seq"
        test -z "$llmc" || time_round llmc "$seq"
        test "$round" -gt 1 || test ! -f "$work/torch.about" || cat "$work/torch.about"
    done
    echo "T=$seq"
    report smp smp-exec "$seq"
    test -z "$python" || report torch PyTorch "$seq"
    test -z "$llmc" || report llmc llm.c "$seq"
done
