# SPDX-License-Identifier: Apache-2.0
# SMP_CHECK_MPI: --with-mpi=guess|yes|no.
# The compiler stays CC: flags come from pkg-config (mpi-c, ompi-c, mpich), else from mpicc
# (Open MPI or MPICH).  Sets MPI_CFLAGS, MPI_LIBS, MPIRUN, mpi_summary and the conditional
# HAVE_MPI.  guess takes what is there; yes stops configure when it does not work.
AC_DEFUN([SMP_CHECK_MPI], [
  AC_ARG_WITH([mpi],
    [AS_HELP_STRING([--with-mpi@<:@=guess|yes|no@:>@],
      [use MPI: if it is found (guess, the default), always, or never])],
    [], [with_mpi=guess])
  AC_ARG_VAR([MPICC], [MPI compiler wrapper, asked for its flags only])
  AC_ARG_VAR([MPIRUN], [program that starts MPI programs])
  AS_CASE([$with_mpi], [guess|yes|no], [],
    [AC_MSG_ERROR([--with-mpi=$with_mpi: must be guess, yes or no])])
  have_mpi=no
  mpi_summary="no (not asked for)"
  AS_IF([test "x$with_mpi" != xno], [SMP_TRY_MPI])
  AS_IF([test "x$with_mpi:$have_mpi" = xyes:no], [AC_MSG_ERROR([--with-mpi=yes: $mpi_summary])])
  AC_SUBST([MPI_CFLAGS])
  AC_SUBST([MPI_LIBS])
  AM_CONDITIONAL([HAVE_MPI], [test "x$have_mpi" = xyes])
])

AC_DEFUN([SMP_TRY_MPI], [
  AC_PATH_PROGS([MPIRUN], [mpirun mpiexec])
  PKG_CHECK_MODULES([MPI], [mpi-c], [smp_mpi_from=mpi-c],
    [PKG_CHECK_MODULES([MPI], [ompi-c], [smp_mpi_from=ompi-c],
      [PKG_CHECK_MODULES([MPI], [mpich], [smp_mpi_from=mpich], [smp_mpi_from=])])])
  AS_IF([test "x$smp_mpi_from" = x], [
    AC_PATH_PROGS([MPICC], [mpicc])
    AS_IF([test "x$MPICC" = x], [],
      [MPI_CFLAGS=`$MPICC --showme:compile 2>/dev/null`],
      [smp_mpi_from="$MPICC"; MPI_LIBS=`$MPICC --showme:link 2>/dev/null`],
      [MPI_CFLAGS=`$MPICC -compile_info 2>/dev/null | $SED 's/^@<:@^ @:>@* //'`],
      [smp_mpi_from="$MPICC"; MPI_LIBS=`$MPICC -link_info 2>/dev/null | $SED 's/^@<:@^ @:>@* //'`])
  ])
  AS_IF([test "x$smp_mpi_from" = x], [mpi_summary="no (not found)"], [SMP_LINK_MPI])
])

AC_DEFUN([SMP_LINK_MPI], [
  smp_saved_CFLAGS=$CFLAGS
  smp_saved_LIBS=$LIBS
  CFLAGS="$CFLAGS $MPI_CFLAGS"
  LIBS="$MPI_LIBS $LIBS"
  AC_MSG_CHECKING([whether a C program links with MPI])
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <mpi.h>]], [[return MPI_Init(0, 0);]])],
    [AC_MSG_RESULT([yes])
     have_mpi=yes
     mpi_summary="yes ($smp_mpi_from)"],
    [AC_MSG_RESULT([no])
     mpi_summary="no ($smp_mpi_from does not link, see config.log)"])
  CFLAGS=$smp_saved_CFLAGS
  LIBS=$smp_saved_LIBS
])
