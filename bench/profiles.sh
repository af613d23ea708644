#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The fits of the shipped profiles, made again from the published tables, and the error on rows
# held back from them.
#
#     bench/profiles.sh [-w] [-p PLOTS] [DATA]
#
# DATA holds measured/*.csv; default: $SMP_SHARED_DATA, else shared/data beside the source.
# -w writes configs/profiles of the source; without it only the report is printed.  -p plots
# the residuals into the directory PLOTS.  Run it in the build tree (`make profiles` does).
set -e
srcdir=${srcdir:-.}
write=no
plots=
while getopts wp: option; do
    case $option in
    w) write=yes ;;
    p) plots=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
data=${1:-${SMP_SHARED_DATA:-$srcdir/../shared/data}}/measured
if test ! -d "$data"; then
    echo "profiles.sh: $data is not there: name the directory that holds measured/*.csv" >&2
    exit 2
fi
for profile in a100-sxm-80gb h100-sxm h200-sxm b200-sxm; do
    set -- --profile "$srcdir/configs/profiles/$profile.json"
    for table in gemm attention collectives moe_gemm moe_a2a; do
        set -- "$@" --from "$data/$table.csv"
    done
    if test $write = yes; then
        set -- "$@" --output "$srcdir/configs/profiles/$profile.json"
    fi
    if test -n "$plots"; then
        mkdir -p "$plots"
        set -- "$@" --plot "$plots"
    fi
    ./smp-calibrate "$@"
    echo
done
if test $write = yes; then
    # the same chip with other memory
    ./smp-calibrate --like "$srcdir/configs/profiles/a100-sxm-80gb.json" \
        --profile "$srcdir/configs/profiles/a100-sxm-40gb.json" \
        --output "$srcdir/configs/profiles/a100-sxm-40gb.json"
fi
