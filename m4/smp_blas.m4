# SPDX-License-Identifier: Apache-2.0
# SMP_CHECK_BLAS: --with-blas=guess|yes|no.
# OpenBLAS with its CBLAS interface, from pkg-config or the linker's path; the executor needs
# it.  Sets BLAS_CFLAGS, BLAS_LIBS, VECTOR_CFLAGS, blas_summary and the conditional HAVE_BLAS.
AC_DEFUN([SMP_CHECK_BLAS], [
  AC_ARG_WITH([blas],
    [AS_HELP_STRING([--with-blas@<:@=guess|yes|no@:>@],
      [build the executor on OpenBLAS: if it is found (guess, the default), always, or never])],
    [], [with_blas=guess])
  AS_CASE([$with_blas], [guess|yes|no], [],
    [AC_MSG_ERROR([--with-blas=$with_blas: must be guess, yes or no])])
  have_blas=no
  blas_summary="no (not asked for): no executor"
  AS_IF([test "x$with_blas" != xno], [SMP_TRY_BLAS])
  AS_IF([test "x$with_blas:$have_blas" = xyes:no], [AC_MSG_ERROR([--with-blas=yes: $blas_summary])])
  AC_SUBST([BLAS_CFLAGS])
  AC_SUBST([BLAS_LIBS])
  AC_SUBST([VECTOR_CFLAGS])
  AM_CONDITIONAL([HAVE_BLAS], [test "x$have_blas" = xyes])
])

AC_DEFUN([SMP_TRY_BLAS], [
  PKG_CHECK_MODULES([BLAS], [openblas], [], [BLAS_CFLAGS=; BLAS_LIBS=-lopenblas])
  smp_saved_CFLAGS=$CFLAGS
  smp_saved_LIBS=$LIBS
  CFLAGS="$CFLAGS $BLAS_CFLAGS"
  LIBS="$BLAS_LIBS $LIBS"
  AC_MSG_CHECKING([whether a C program links with OpenBLAS])
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cblas.h>]],
      [[openblas_set_num_threads(1); return (int)cblas_sdsdot(0, 0, 0, 1, 0, 1);]])],
    [AC_MSG_RESULT([yes])
     have_blas=yes
     blas_summary="yes ($BLAS_LIBS)"],
    [AC_MSG_RESULT([no])
     blas_summary="no (OpenBLAS not found: libopenblas-dev): no executor"])
  LIBS=$smp_saved_LIBS
  VECTOR_CFLAGS=
  for smp_flag in -fno-math-errno -fno-trapping-math -ftree-vectorize -fvect-cost-model=dynamic; do
    AC_MSG_CHECKING([whether $CC accepts $smp_flag])
    CFLAGS="$smp_saved_CFLAGS -Werror $smp_flag"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])],
      [AC_MSG_RESULT([yes])
       VECTOR_CFLAGS="$VECTOR_CFLAGS $smp_flag"],
      [AC_MSG_RESULT([no])])
  done
  CFLAGS=$smp_saved_CFLAGS
])
