# SPDX-License-Identifier: Apache-2.0
# SMP_CHECK_CUDA: --with-cuda=guess|yes|DIR|no.
# Looks for nvcc and the run-time library and proves that they work together: a kernel is
# compiled and a C program linked.  No GPU is needed or touched.  Sets NVCC, CUDA_CPPFLAGS,
# CUDA_LIBS, cuda_summary and the conditional HAVE_CUDA.  guess takes what is there; yes and
# DIR stop configure when it does not work.
AC_DEFUN([SMP_CHECK_CUDA], [
  AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda@<:@=guess|yes|DIR|no@:>@],
      [use CUDA: if it is found (guess, the default), always, from DIR, or never])],
    [], [with_cuda=guess])
  AC_ARG_VAR([NVCC], [CUDA compiler])
  have_cuda=no
  cuda_summary="no (not asked for)"
  CUDA_CPPFLAGS=
  CUDA_LIBS=
  AS_IF([test "x$with_cuda" != xno], [SMP_TRY_CUDA])
  AS_CASE([$with_cuda:$have_cuda],
    [no:*|guess:*|*:yes], [],
    [AC_MSG_ERROR([--with-cuda=$with_cuda: $cuda_summary])])
  AC_SUBST([CUDA_CPPFLAGS])
  AC_SUBST([CUDA_LIBS])
  AM_CONDITIONAL([HAVE_CUDA], [test "x$have_cuda" = xyes])
])

AC_DEFUN([SMP_TRY_CUDA], [
  AS_CASE([$with_cuda],
    [guess|yes], [AC_PATH_PROG([NVCC], [nvcc], [], [$PATH$PATH_SEPARATOR/usr/local/cuda/bin])],
    [AS_IF([test -x "$with_cuda/bin/nvcc"], [NVCC=$with_cuda/bin/nvcc], [NVCC=])])
  AS_IF([test "x$NVCC" = x],
    [cuda_summary="no (nvcc not found)"],
    [smp_cuda_home=`dirname "$NVCC"`
     smp_cuda_home=`cd "$smp_cuda_home/.." && pwd`
     SMP_TRY_NVCC])
])

AC_DEFUN([SMP_TRY_NVCC], [
  AC_MSG_CHECKING([whether $NVCC compiles a kernel])
  AS_ECHO(["__global__ void k(int *p) { *p = 1; } int main() { k<<<1,1>>>(0); return 0; }"]) > conftest.cu
  AS_IF([$NVCC -c conftest.cu -o conftest_cu.o >&AS_MESSAGE_LOG_FD 2>&1],
    [AC_MSG_RESULT([yes])
     SMP_TRY_CUDART],
    [AC_MSG_RESULT([no])
     cuda_summary="no ($NVCC does not compile a kernel, see config.log)"])
  rm -f conftest.cu conftest_cu.o
])

AC_DEFUN([SMP_TRY_CUDART], [
  smp_saved_CPPFLAGS=$CPPFLAGS
  smp_saved_LIBS=$LIBS
  CUDA_CPPFLAGS="-I$smp_cuda_home/include"
  CUDA_LIBS="-L$smp_cuda_home/lib64 -L$smp_cuda_home/lib -lcudart -lstdc++"
  CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
  LIBS="$CUDA_LIBS $LIBS"
  AC_MSG_CHECKING([whether a C program links with the CUDA run time])
  AC_LINK_IFELSE(
    [AC_LANG_PROGRAM([[#include <cuda_runtime_api.h>]], [[int n; return cudaGetDeviceCount(&n);]])],
    [AC_MSG_RESULT([yes])
     have_cuda=yes
     cuda_summary="yes ($NVCC)"],
    [AC_MSG_RESULT([no])
     cuda_summary="no (the CUDA run time does not link, see config.log)"])
  CPPFLAGS=$smp_saved_CPPFLAGS
  LIBS=$smp_saved_LIBS
])
