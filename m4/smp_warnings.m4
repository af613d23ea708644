# SPDX-License-Identifier: Apache-2.0
# SMP_WARNINGS: WARN_CFLAGS, the warnings every C file here compiles without; and
# --enable-werror, which turns them into errors (off by default, so that a compiler of
# tomorrow with a new warning still builds a release).
AC_DEFUN([SMP_WARNINGS], [
  AC_ARG_ENABLE([werror],
    [AS_HELP_STRING([--enable-werror], [treat compiler warnings as errors])],
    [], [enable_werror=no])
  WARN_CFLAGS=
  smp_saved_CFLAGS=$CFLAGS
  for smp_flag in -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes \
      -Wmissing-prototypes -Wcast-qual -Wconversion -Wvla -Wformat=2 -Wundef \
      -Wswitch-enum -Wdouble-promotion
  do
    AC_MSG_CHECKING([whether $CC accepts $smp_flag])
    CFLAGS="$smp_saved_CFLAGS -Werror $smp_flag"
    AC_COMPILE_IFELSE([AC_LANG_SOURCE([int smp_dummy;])],
      [AC_MSG_RESULT([yes]); WARN_CFLAGS="$WARN_CFLAGS $smp_flag"],
      [AC_MSG_RESULT([no])])
  done
  CFLAGS=$smp_saved_CFLAGS
  AS_IF([test "x$enable_werror" = xyes], [WARN_CFLAGS="$WARN_CFLAGS -Werror"])
  AC_SUBST([WARN_CFLAGS])
])
