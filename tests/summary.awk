# SPDX-License-Identifier: Apache-2.0
# Adds up Automake's .trs files and prints "N passed, N failed" as the last line; skipped
# tests have a line before it.  -v broken=1: the run broke off, so at least one failed.
/^:test-result: (PASS|XFAIL)/ { passed++ }
/^:test-result: (FAIL|XPASS|ERROR)/ { failed++ }
/^:test-result: SKIP/ { skipped++ }
END {
    if (broken && !failed) {
        failed = 1
    }
    if (skipped) {
        printf "%d skipped\n", skipped
    }
    printf "%d passed, %d failed\n", passed, failed
}
