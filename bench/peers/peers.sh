#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# GPT-2 124M on the processor, fp32, 4 sequences of 64 and of 256 tokens: smp-exec beside
# PyTorch and llm.c, in one run.  See README.md here; run it in the build tree.
#
#     bench/peers/peers.sh [-t THREADS] [-s STEPS] [-p PYTHON] [-l LLMC]
#
# PYTHON is an interpreter that has torch, LLMC a directory of llm.c with gpt2_124M.bin and its
# data.  What is not given is left out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
threads=$(getconf _NPROCESSORS_ONLN)
steps=10
python=
llmc=
while getopts t:s:p:l: option; do
    case $option in
    t) threads=$OPTARG ;;
    s) steps=$OPTARG ;;
    p) python=$OPTARG ;;
    l) llmc=$OPTARG ;;
    *) exit 2 ;;
    esac
done
if ! test -x ./smp-exec; then
    echo "peers.sh: run it where smp-exec was built" >&2
    exit 2
fi
if test -n "$llmc" && ! test -f "$llmc/gpt2_124M.bin"; then
    echo "peers.sh: $llmc/gpt2_124M.bin is not there; llm.c's README says how to get it" >&2
    exit 2
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/smp-peers.XXXXXX")
trap 'rm -rf "$work"' EXIT
cat >"$work/gpt2.json" <<END
{"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12,
 "n_positions": 1024, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
END

# Median of the lines of a file, without the first two steps.
median() {
    grep -v '^#' "$1" | tail -n +3 | sort -g | awk '{ x[NR] = $1 }
        END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'
}
time_smp() {
    ./smp-exec --model "$work/gpt2.json" --cluster cpu --gpus 1 --seq-len "$1" \
        --global-batch 4 --set precision=fp32 --set micro_batch=4 --threads "$threads" \
        --data "$here/../../LICENSE" --steps "$steps" --metrics "$work/m" >/dev/null
    sed -n 's/.*"seconds": \([0-9.]*\).*/\1/p' "$work/m" >"$work/smp"
    median "$work/smp"
}
time_torch() {
    OMP_NUM_THREADS=$threads "$python" "$here/gpt2_torch.py" 4 "$1" "$steps" "$threads" \
        >"$work/torch"
    median "$work/torch"
}
# llm.c has its shape, its number of steps and the length of its sample in the source.
time_llmc() {
    sed -e "s/int T = 64;/int T = $1;/" -e "s/step <= 40;/step < $steps;/" \
        -e 's/int genT = 64;/int genT = 1;/' "$llmc/train_gpt2.c" >"$work/train.c"
    "${CC:-cc}" -O3 -Ofast -march=native -fopenmp -Wno-unused-result -I"$llmc" \
        "$work/train.c" -lm -o "$work/train" 2>"$work/cc" || { cat "$work/cc" >&2; return 1; }
    (cd "$llmc" && OMP_NUM_THREADS=$threads "$work/train") >"$work/llmc.out"
    sed -n 's/^step .*(took \([0-9.]*\) ms).*/\1/p' "$work/llmc.out" |
        awk '{ print $1 / 1000 }' >"$work/llmc"
    median "$work/llmc"
}
report() { # NAME SECONDS OWN T
    awk -v name="$1" -v s="$2" -v own="$3" -v t="$4" 'BEGIN {
        printf "  %-10s %8.3f s  %8.0f tokens/s  %5.2f x smp-exec\n", name, s, 4 * t / s, s / own
    }'
}

echo "GPT-2 124M, B=4, fp32, $threads threads, median of $((steps - 2)) steps," \
    "OPENBLAS_CORETYPE ${OPENBLAS_CORETYPE:-unset}"
for seq in 64 256; do
    echo "T=$seq"
    own=$(time_smp "$seq")
    report smp-exec "$own" "$own" "$seq"
    if test -n "$python"; then
        other=$(time_torch "$seq")
        report PyTorch "$other" "$own" "$seq"
    fi
    if test -n "$llmc"; then
        other=$(time_llmc "$seq")
        report llm.c "$other" "$own" "$seq"
    fi
done
