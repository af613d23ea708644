# SPDX-License-Identifier: Apache-2.0
# SMP_CHECK_TENSORBOARD: protocol buffers in C, for smp-exec --tensorboard.  Sets
# PROTOBUF_C_CFLAGS, PROTOBUF_C_LIBS, PROTOC_C, the conditional HAVE_PROTOBUF_C and
# tensorboard_summary.
AC_DEFUN([SMP_CHECK_TENSORBOARD], [
  AC_ARG_WITH([tensorboard],
    [AS_HELP_STRING([--with-tensorboard],
       [event files of TensorBoard, by protobuf-c (default: if there)])],
    [], [with_tensorboard=auto])
  have_protobuf_c=no
  AS_IF([test "x$with_tensorboard" != xno], [
    PKG_CHECK_MODULES([PROTOBUF_C], [libprotobuf-c], [have_protobuf_c=yes], [:])
    AC_CHECK_PROGS([PROTOC_C], [protoc-c])
    AS_IF([test -z "$PROTOC_C"], [have_protobuf_c=no])
    AS_IF([test "x$with_tensorboard$have_protobuf_c" = xyesno],
      [AC_MSG_ERROR([--with-tensorboard: libprotobuf-c or protoc-c is missing
 (Debian: libprotobuf-c-dev protobuf-c-compiler)])])
  ])
  AM_CONDITIONAL([HAVE_PROTOBUF_C], [test "x$have_protobuf_c" = xyes])
  tensorboard_summary=$have_protobuf_c
])
