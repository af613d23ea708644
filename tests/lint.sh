#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Rules of the house that a compiler does not check; speaks TAP.  Each rule prints the lines
# that break it.  (X( starts a row of a table that is read as a table, whatever its width.)
set -u
: "${srcdir:=.}" "${CC:=cc}" "${TEST_CPPFLAGS:=}"
cd "$srcdir" || exit 99

number=0
# report NAME BROKEN: BROKEN is empty when the rule holds.
report() {
    number=$((number + 1))
    if [ -z "$2" ]; then
        echo "ok $number - $1"
    else
        echo "not ok $number - $1"
        echo "$2" | sed 's/^/# /'
    fi
}
skipped() {
    number=$((number + 1))
    echo "ok $number - $1 # SKIP $2"
}

sources() {
    find src examples fuzz tests -name '*.[ch]' 2>/dev/null | LC_ALL=C sort
}

# A folder uses itself and those before it in this list; tools only smp.h, their own, the
# headers of data (smp-data), and those of exec and compare, which libsmp.a does not hold;
# nothing but these two uses exec.
layers() {
    sources | grep '^src/' | xargs grep -n '^ *# *include *"' | awk -F: '
        BEGIN {
            n = split("base data model mesh step exec cost sim plan compare", name, " ")
            for (i = 1; i <= n; i++) { level[name[i]] = i }
        }
        {
            split($1, from, "/"); split($3, quoted, "\""); used = quoted[2]
            if (used == "config.h" || used == "smp.h") { next }
            if (split(used, to, "/") < 2) { print $0 "  (names no folder)"; next }
            if (from[2] == to[1]) { next }
            runs = to[1] == "exec" || to[1] == "compare"
            if (from[2] == "tools" && (runs || to[1] == "data")) { next }
            if (runs && from[2] != "compare") { print $0; next }
            if (!(from[2] in level) || !(to[1] in level) || level[to[1]] > level[from[2]]) {
                print $0
            }
        }'
}

headers_alone() {
    object=${TMPDIR:-/tmp}/smp-lint-$$.o
    for header in $(sources | grep '\.h$'); do
        # shellcheck disable=SC2086
        echo "#include \"$header\"" | $CC -std=c11 -D_GNU_SOURCE -DSMP_SOURCE_DIR='"."' \
            -I. -Isrc -Ifuzz $TEST_CPPFLAGS -x c -c -o "$object" - 2>&1 | sed "s|^|$header: |"
    done
    rm -f "$object"
}

# A function ends at the first brace in the first column.  Longer ones are switches with one
# line or two for every operation of a program.
long_functions() {
    # shellcheck disable=SC2016
    sources | xargs awk -v most=60 '
        FNR == 1 { start = 0 }
        /^[a-z].*[(]/ { head = $0 }
        /^[{]$/ { start = FNR }
        /^}/ && start {
            if (FNR - start + 1 > most && head !~ /smp_task_bytes|smp_walk_backward|forward_node/) {
                print FILENAME ":" start ": " FNR - start + 1 " lines: " head
            }
            start = 0
        }'
}

# reference.h is one table of numbers after the other, smp.h the whole interface; the search is
# one algorithm.
long_files() {
    sources | grep -vE '^src/(smp\.h|plan/search\.c)$|/reference\.h$' | xargs awk -v most=700 '
        FNR == most + 1 { print FILENAME }'
}

scripts() {
    ls quickstart .ci/run build-aux/cmocka-tap build-aux/coverage build-aux/data-files \
        2>/dev/null
    find tests examples -name '*.sh' 2>/dev/null
}

echo 1..10
report "each folder of src includes only those below it" "$(layers)"
report "each header compiles alone" "$(headers_alone)"
report "file names are unique" "$(sources | sed 's|.*/||' | sort | uniq -d)"
report "each file starts with its licence and says what it is" "$(
    for file in $(sources); do
        head -n 1 "$file" | grep -q 'SPDX-License-Identifier' \
            && sed -n 2p "$file" | grep -q '^/\*' || echo "$file"
    done)"
report "nothing is left to do" "$(sources | xargs grep -nwE 'TODO|FIXME|XXX' /dev/null)"
report "lines have 96 columns at most, no tabs, no blanks at the end" "$(
    sources | xargs grep -nE '.{97}|[[:blank:]]$|	' /dev/null | grep -v ':    X(')"
report "functions have 60 lines at most" "$(long_functions)"
report "files have 700 lines at most" "$(long_files)"
report "nothing calls what must not be called" "$(
    sources | grep '^src/' | xargs grep -nE \
        '(^|[^a-z_])(rand|srand|strcpy|strcat|sprintf|gets|atoi|atof)\(' /dev/null)"
if command -v shellcheck >/dev/null 2>&1; then
    # shellcheck disable=SC2046
    report "scripts pass shellcheck" "$(shellcheck $(scripts) 2>&1)"
else
    skipped "scripts pass shellcheck" "no shellcheck"
fi
