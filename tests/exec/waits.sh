#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The waits of the program are enough and none is too many, by ThreadSanitizer: a build with a
# matrix product of its own, since accesses of a BLAS library are invisible to it.  Streams
# run beside each other without a race; without any one wait there is one.  Speaks TAP; part
# of `make check-full`, in the build tree.
set -u
: "${srcdir:=.}" "${CC:=cc}"
mkdir -p tsan && cd tsan || exit 99
flags='-g -O1 -fsanitize=thread'
case $srcdir in /*) ;; *) srcdir=../$srcdir ;; esac
# shellcheck disable=SC2086 # several words
if ! echo 'int main(void) { return 0; }' | $CC $flags -x c - -o probe >log 2>&1; then
    echo "1..0 # SKIP the compiler has no ThreadSanitizer"
    exit 0
fi
if ! { test -f Makefile || "$srcdir/configure" --with-blas=plain --without-mpi \
    --without-cuda CC="$CC" CFLAGS="$flags" LDFLAGS=-fsanitize=thread; } >log 2>&1 \
    || ! make tests/exec/check_waits tests/exec/test_balancing \
    tests/exec/test_steps >>log 2>&1; then
    tail -n 20 log | sed 's/^/# /'
    echo "1..1"
    echo "not ok 1 - a build with ThreadSanitizer"
    exit 1
fi
# Its memory map and the randomization of addresses do not go together everywhere.
without_aslr=
if setarch "$(uname -m)" -R true 2>/dev/null; then
    without_aslr="setarch $(uname -m) -R"
fi
TSAN_OPTIONS=exitcode=66
export TSAN_OPTIONS srcdir
number=0
failed=0
# check NAME STATUS COMMAND: the command ends with the status.
check() {
    number=$((number + 1))
    name=$1
    want=$2
    shift 2
    "$@" >out 2>&1
    got=$?
    if [ "$got" -eq "$want" ]; then
        echo "ok $number - $name"
    else
        failed=1
        echo "not ok $number - $name"
        sed 's/^/# /' out | tail -n 40
    fi
}
waits=$($without_aslr tests/exec/check_waits n)
tokens=$($without_aslr tests/exec/check_waits k)
echo "1..$((waits + 3))"
# shellcheck disable=SC2086 # two words or none
check "streams beside each other have no race" 0 $without_aslr tests/exec/check_waits 0
# shellcheck disable=SC2086
check "nor have ranks with experts" 0 $without_aslr tests/exec/test_balancing
# shellcheck disable=SC2086
check "nor have steps behind each other" 0 $without_aslr tests/exec/test_steps
# ThreadSanitizer remembers few accesses of each word, and may have forgotten the one.
races() {
    for try in 1 2 3 4; do
        $without_aslr tests/exec/check_waits "$1" || return 0
    done
    echo "none in $try runs"
    return 1
}
n=1
while [ "$n" -le "$waits" ]; do
    if echo "$tokens" | grep -q -x "$n" && ! races "$n" >out 2>&1; then
        number=$((number + 1))
        echo "ok $number - without wait $n # SKIP it is for a token, which has no memory"
    else
        check "without wait $n there is a race" 0 races "$n"
    fi
    n=$((n + 1))
done
exit $failed
