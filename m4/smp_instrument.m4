# SPDX-License-Identifier: Apache-2.0
# SMP_INSTRUMENT: builds that look for faults.
#   --enable-sanitizers[=LIST]  gcc or clang sanitizers
#   --enable-coverage           gcov; then `make coverage`
#   --enable-fuzzing            libFuzzer of clang; then `make fuzz`
# Sets SANITIZER_CFLAGS, COVERAGE_CFLAGS, FUZZER_MAIN and the conditionals ENABLE_COVERAGE
# and ENABLE_FUZZING.  The flags serve compiling and linking.
AC_DEFUN([SMP_INSTRUMENT], [
  AC_ARG_ENABLE([sanitizers],
    [AS_HELP_STRING([--enable-sanitizers@<:@=LIST@:>@],
      [build with sanitizers: address,undefined (default), thread, ...])],
    [], [enable_sanitizers=no])
  AC_ARG_ENABLE([coverage],
    [AS_HELP_STRING([--enable-coverage], [measure test coverage with gcov])],
    [], [enable_coverage=no])
  AC_ARG_ENABLE([fuzzing],
    [AS_HELP_STRING([--enable-fuzzing], [build the fuzz targets for libFuzzer (clang)])],
    [], [enable_fuzzing=no])

  AS_IF([test "x$enable_fuzzing" = xyes],
    [FUZZER_MAIN=-fsanitize=fuzzer
     AS_IF([test "x$enable_sanitizers" = xno], [enable_sanitizers=yes])],
    [FUZZER_MAIN=])
  SANITIZER_CFLAGS=
  AS_IF([test "x$enable_sanitizers" = xyes], [enable_sanitizers=address,undefined])
  AS_IF([test "x$enable_sanitizers" != xno], [
    SANITIZER_CFLAGS="-fsanitize=$enable_sanitizers -fno-sanitize-recover=all -fno-omit-frame-pointer"
    AS_IF([test "x$enable_fuzzing" = xyes],
      [SANITIZER_CFLAGS="$SANITIZER_CFLAGS -fsanitize=fuzzer-no-link"])
    SMP_CHECK_LINK([$SANITIZER_CFLAGS])
  ])
  COVERAGE_CFLAGS=
  AS_IF([test "x$enable_coverage" = xyes],
    [COVERAGE_CFLAGS="--coverage -O0"
     AC_CHECK_PROGS([GCOV], [${GCOV:-gcov}])
     SMP_CHECK_LINK([$COVERAGE_CFLAGS])])
  AC_SUBST([SANITIZER_CFLAGS])
  AC_SUBST([COVERAGE_CFLAGS])
  AC_SUBST([FUZZER_MAIN])
  AM_CONDITIONAL([ENABLE_COVERAGE], [test "x$enable_coverage" = xyes])
  AM_CONDITIONAL([ENABLE_FUZZING], [test "x$enable_fuzzing" = xyes])
])

# SMP_CHECK_LINK(FLAGS): stops configure when a program does not link with FLAGS.
AC_DEFUN([SMP_CHECK_LINK], [
  AC_MSG_CHECKING([whether $CC links with $1])
  smp_saved_CFLAGS=$CFLAGS
  CFLAGS="$CFLAGS $1"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])], [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([$CC cannot link with $1, which an --enable option asks for])])
  CFLAGS=$smp_saved_CFLAGS
])
