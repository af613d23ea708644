# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154 # program is set by those that call ends and wrong
# For scripts that test programs from outside, in the build tree: sourced, then `work` is a folder
# of their own, and checks are told in TAP.
: "${srcdir:=.}"
work=$(mktemp -d "${TMPDIR:-/tmp}/smp-tests.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
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
# ends STATUS ARGUMENT...: $program with $job and the arguments; output in out and err.
ends() {
    expected=$1
    shift
    # shellcheck disable=SC2086 # several words, or none
    "$program" ${job-} "$@" >"$work/out" 2>"$work/err"
    found=$?
    test "$found" -eq "$expected" && return 0
    echo "status $found, expected $expected"
    cat "$work/out" "$work/err"
    return 1
}
# wrong STATUS MESSAGE ARGUMENT...: that status, and one line that names the program and holds
# MESSAGE.
wrong() {
    status=$1
    message=$2
    shift 2
    ends "$status" "$@" || return 1
    cat "$work/err"
    test "$(wc -l <"$work/err")" -eq 1 && grep -q "^${program##*/}: " "$work/err" &&
        grep -q -- "$message" "$work/err"
}
# says TEXT FILE: of the folder.
says() {
    grep -q -- "$1" "$work/$2" && return 0
    cat "$work/$2"
    return 1
}
