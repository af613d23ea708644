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
# By its name, a symbolic link or a hard one: what is decoded is not replaced.
not_replaced() {
    cp "$work/t.bin" "$work/own.bin"
    ln -sf own.bin "$work/soft"
    ln -f "$work/own.bin" "$work/hard"
    for output in own.bin soft hard; do
        wrong 2 "is also what is read" decode "$work/own.bin" -o "$work/$output" || return 1
    done
    cmp "$work/t.bin" "$work/own.bin"
}
# Megatron's index: a sequence and document of the 2 bytes that are a token of uint16.
megatron() {
    n='\000\000\000\000\000\000\000'
    printf %b "MMIDIDX\000\000\001$n\010\001$n\002$n\001\000\000\000\000$n\000$n\001$n" \
        >"$1.idx"
    printf 'A\000' >"$1.bin"
    cp "$1.idx" "$work/before"
}
pair_not_replaced() {
    megatron "$work/pair"
    test "$(./smp-data decode "$work/pair")" = A || return 1
    for output in bin idx; do
        wrong 2 "is also what is read" decode "$work/pair.bin" -o "$work/pair.$output" || return 1
    done
    cmp "$work/before" "$work/pair.idx" && test "$(wc -c <"$work/pair.bin")" -eq 2
}
# A full disk is said to be one, without advice for outputs that cannot seek.
full() {
    wrong 1 "No space left" encode "$text" -o /dev/full && ! says nanogpt err >/dev/null
}
unseekable() { # the program's status is lost in the pipe
    ./smp-data encode "$text" -o - 2>"$work/err" | cat >"$work/p" &&
        says "Illegal seek; --format nanogpt has none" err
}
# others COMMAND OPTION...: options that the command does not read, each with a value.
others() {
    command=$1
    shift
    for option in "$@"; do
        wrong 2 "^smp-data: $option: is an option of .*, not of $command" "$command" \
            "$work/t.bin" "$option" 3 || return 1
    done
}

appended() {
    ./smp-data encode "$work/a" -o - >>"$work/appended" 2>"$work/err"
    test $? -eq 2 && says "output is appended to" err
}

echo 1..42
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
check "a file that is decoded onto itself" not_replaced
check "nor is a pair" pair_not_replaced
check "a name of text" wrong 2 "x.txt: would be read as text: .* ends in .bin" encode "$text" \
    -o "$work/x.txt"
check "leaves no file" test ! -e "$work/x.txt"
check "a name of Megatron's" wrong 2 "would be read as Megatron's, with .*pair.idx" \
    encode "$text" -o "$work/pair.bin"
check "a full disk that has a header" full
check "a pipe that has none" unseekable
: >"$work/empty"
check "no token" wrong 2 "there is no token" encode "$work/empty" -o "$work/none.bin"
check "is no file" test ! -e "$work/none.bin"
check "an empty text that ends" ./smp-data encode "$work/empty" --eot 256 -o "$work/none.bin"
check "tokens in place of text" wrong 2 "t.bin: begins as llm.c's tokens" encode "$text" \
    "$work/t.bin" -o "$work/x.bin"
printf 'abc' >"$work/a"
./smp-data encode "$work/a" -o "$work/three.bin"
check "the last token" test "$(./smp-data decode "$work/three.bin" --first 2)" = c
check "a part behind the end" wrong 2 "^smp-data: --first: 3: .* has 3 tokens" decode \
    "$work/three.bin" --first 3
check "far behind it" wrong 2 "^smp-data: --first: 4294967296: .* has 3 tokens" decode \
    "$work/three.bin" --first 4294967296
check "a part of nothing" wrong 2 "^smp-data: --count: '0': must be" decode "$work/three.bin" -n 0
check "what info does not read" others info --first --count --output --format --tokenizer
check "what encode and decode do not read" eval 'others encode --first --count &&
    others decode --eot --format'
check "a header in the midst of a file" appended
