# SPDX-License-Identifier: Apache-2.0
# Time against memory of a search: candidates, the front, the plans.
# Use: gnuplot -c pareto.gp DATA OUTPUT svg|png CAPACITY_GIB TITLE
# DATA is what smp-plan --pareto writes.
data = ARG1
output_path = ARG2
capacity = ARG4 + 0
job = ARG5

if (ARG3 eq "png") {
    set terminal pngcairo size 1360,640 font "sans,12"
} else {
    set terminal svg size 1360,640 font "sans,14" background "white"
}
set output output_path

set title job noenhanced
set xlabel "step time (s)"
set ylabel "peak memory per GPU (GiB)"
set grid lc rgb "#dddddd"
set border 3
set tics nomirror
# On the right: the key, and the settings that the letters on the front stand for.
set rmargin at screen 0.62
set key at screen 0.98, screen 0.24
names = ""
set table $nothing
plot [0:100] [0:2] data index 4 using 0:(names = names . stringcolumn(4) . "\n", 1) with points
unset table
set label names at screen 0.635, screen 0.94 left noenhanced font ",10" textcolor rgb "#1a6627"
# The slowest candidates say little: three times the fastest is enough.
stats data index 0:1 using 1 name "time" nooutput
set xrange [0.95*time_min:(time_max > 3*time_min ? 3*time_min : time_max + 0.05*time_min)]
set yrange [0:*<1.6*capacity]
set arrow from graph 0, first capacity to graph 1, first capacity nohead \
    lc rgb "#b03030" dt 2 lw 1.5
set label "memory a plan may use" at graph 0.99, first capacity right \
    offset 0, 0.6 textcolor rgb "#b03030"

plot data index 1 using 1:2 with points pt 2 ps 0.5 lc rgb "#c0c0c0" title "does not fit", \
     data index 0 using 1:2 with points pt 7 ps 0.5 lc rgb "#4477aa" title "fits", \
     data index 2 using 1:2 with steps lw 2 lc rgb "#228833" title "front", \
     data index 3 using 1:2 with points pt 6 ps 1.4 lw 2 lc rgb "#cc6600" title "plans", \
     data index 3 using 1:2:3 with labels offset 1.2, 0.8 textcolor rgb "#cc6600" notitle, \
     data index 4 using 1:2 with points pt 7 ps 0.7 lc rgb "#228833" notitle, \
     data index 4 using 1:2:3 with labels left offset 0.4, 0.6 font ",10" noenhanced \
         textcolor rgb "#1a6627" notitle
