# SPDX-License-Identifier: Apache-2.0
# How time grows with layers, ranks, micro-batches and candidates.
# Use: gnuplot -c growth.gp DATA OUTPUT svg|png
# DATA is what bench/growth prints.
data = ARG1

if (ARG3 eq "png") {
    set terminal pngcairo size 1000,800 font "sans,11"
} else {
    set terminal svg size 1000,800 font "sans,13" background "white"
}
set output ARG2

set logscale xy
set grid lc rgb "#dddddd"
set border 3
set tics nomirror
set format xy "%g"
set key bottom right samplen 2 font ",10"
set mxtics 1
set mytics 1
set ylabel "time (ms)"
set multiplot layout 2,2

do for [i = 0:2] {
    stats data index i using 1:2 name "span" nooutput
    set xlabel word("layers ranks micro-batches", i + 1)
    plot data index i using 1:2 with linespoints pt 7 ps 0.5 lc rgb "#4477aa" title "lower", \
         data index i using 1:3 with linespoints pt 5 ps 0.5 lc rgb "#aa3377" title "verify", \
         data index i using 1:4 with linespoints pt 9 ps 0.6 lc rgb "#228833" \
             title "simulate, classes", \
         data index i using 1:5 with linespoints pt 11 ps 0.6 lc rgb "#cc6600" \
             title "simulate, all ranks, jitter", \
         data index i using 1:(span_max_y*$1/span_max_x) with lines dt 2 lc rgb "#999999" \
             title "linear"
    unset key
}
set key top left
stats data index 3 using 1:2 name "span" nooutput
set xlabel "candidates of the space"
plot data index 3 using 1:2 with linespoints pt 7 ps 0.5 lc rgb "#4477aa" title "search", \
     data index 3 using 1:(span_max_y*$1/span_max_x) with lines dt 2 lc rgb "#999999" \
         title "linear"
unset multiplot
