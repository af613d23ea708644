#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# smp-data from outside: round trips, exit statuses, messages.  Speaks TAP; runs in the build
# tree.
set -u
. "${srcdir:=.}/tests/tap.sh"
program=./smp-data
text="$srcdir/LICENSE"

# round_trip ARGUMENT...: encoded so and decoded, the text is the same.
round_trip() {
    ./smp-data encode "$text" -o "$work/t.bin" "$@" && ./smp-data decode "$work/t.bin" \
        >"$work/back" && cmp "$text" "$work/back"
}
tells() {
    ./smp-data info "$2" --eot 256 >"$work/info" && says "$1" info
}
piped() {
    ./smp-data encode - -o - --format nanogpt <"$text" >"$work/p.bin" &&
        ./smp-data decode "$work/p.bin" -o "$work/back" && cmp "$text" "$work/back"
}
part() { test "$(./smp-data decode "$work/t.bin" --first 2 --count 3)" = "$1"; }

echo 1..24
check "help" ./smp-data --help
check "with a header and back" round_trip
check "what is in it" tells "format       llm.c, 2 bytes" "$work/t.bin"
check "without a header and back" round_trip --format nanogpt
check "an end of text decodes to nothing" round_trip --eot 256
printf 'abcdef' >"$work/a"
check "two texts" ./smp-data encode "$work/a" "$work/a" --eot 256 -o "$work/t.bin"
check "are two documents" tells "2, of 7 to 7 tokens" "$work/t.bin"
check "ids" tells "97 to 256: a vocabulary of 257" "$work/t.bin"
check "a part" part cde
check "an end of text that no file of bytes has" wrong 2 "'257': must be a whole number from 0 to 256" \
    encode "$work/a" --eot 257 -o "$work/x.bin"
check "through pipes" piped
check "no command" wrong 2 "must be info, encode or decode" "$text"
check "no file" wrong 2 "a file is missing" info
check "no such file" wrong 2 "No such file" info "$work/none"
check "other tokenizers" wrong 2 "only byte is there" encode "$text" -o "$work/x.bin" \
    --tokenizer tokenizer.json
head -c 1100 "$work/t.bin" >"$work/cut.bin"
printf 'x' >>"$work/cut.bin"
check "truncated" wrong 2 "not complete" info "$work/cut.bin"
printf '\377\377' >"$work/far.bin"
check "a token of another tokenizer" wrong 2 "token 65535 at 0" decode "$work/far.bin"
check "a full disk" wrong 1 "No space left" encode "$text" --format nanogpt -o /dev/full
check "a directory" wrong 2 "directory" encode "$srcdir" -o "$work/x.bin"
head -c 1000 "$work/t.bin" >"$work/head.bin"
check "a part of a header" wrong 2 "begins as llm.c's header" info "$work/head.bin"
cp "$text" "$work/own"
check "an output that is read" wrong 2 "is also what is read" encode "$work/own" -o "$work/own"
check "which is left as it was" cmp "$text" "$work/own"
cp "$work/head.bin" "$work/before"
check "nor is one that is decoded" wrong 2 "is also what is read as tokens" decode "$work/head.bin" \
    -o "$work/head.bin"
check "which is left, too" cmp "$work/head.bin" "$work/before"
