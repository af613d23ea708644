# SPDX-License-Identifier: Apache-2.0
# Streams of one rank over a step: the whole of it, its first layers, the start of backward.
# gnuplot -c timeline.gp DATA OUTPUT svg|png TITLE "STREAM STREAM ..." "FROM_MS TO_MS ..." of the three
data = ARG1
streams = ARG5
n = words(streams)
height = 150 + 3 * (90 + 26 * n)
if (ARG3 eq "png") {
    set terminal pngcairo size 1500,height * 1.2 font "sans,12" noenhanced
} else {
    set terminal svg size 1250,height font "sans,12" noenhanced background "white"
}
set output ARG2
array colour[6] = [0x1f5fa8, 0x4f9d69, 0x9dc6e8, 0xe6a23c, 0xc8553d, 0xa05195]
paint(k) = colour[int(k) + 1]

set border 3 lc rgb "#707070"
set tics nomirror textcolor rgb "#303030"
set ytics scale 0
set grid xtics lc rgb "#d8d8d8" lw 1 dt 1 back
set style fill solid 1.0 noborder
set yrange [n - 0.4:-0.6]
set ytics ()
do for [i = 1:n] { set ytics add (word(streams, i) i - 1) }
set lmargin 12
set rmargin 3
unset key

set label 1 ARG4 at screen 0.015,screen 0.98 left font "sans,14"
set multiplot layout 3,1 margins char 12,char 3,char 4,char 6 spacing char 0,char 6
do for [p = 0:2] {
    from = real(word(ARG6, 1 + 2 * p))
    to = real(word(ARG6, 2 + 2 * p))
    scale = (to > 2000 ? 1000.0 : 1.0)
    set xrange [from / scale:to / scale]
    set xlabel (scale > 1 ? "time, s" : "time, ms") offset 0,0.5
    set label 2 (p == 0 ? "whole step" : p == 1 ? "first layers, forward" : \
        "end of forward, first layers of backward") at graph 0,graph 1.07 left
    if (p == 0) {
        set key at screen 0.985,screen 0.96 horizontal right top reverse Left samplen 1 \
            spacing 1.1
    } else {
        unset key
        unset label 1
    }
    plot data index p using (($2 + $3) / 2 / scale):1:($2 / scale):($3 / scale):($1 - 0.36):($1 + 0.36):(paint($4)) \
             with boxxyerror lc rgb variable notitle, \
         keyentry with boxes lc rgb colour[1] title "matmul", \
         keyentry with boxes lc rgb colour[2] title "attention", \
         keyentry with boxes lc rgb colour[3] title "memory-bound kernel", \
         keyentry with boxes lc rgb colour[4] title "all-gather", \
         keyentry with boxes lc rgb colour[5] title "reduction", \
         keyentry with boxes lc rgb colour[6] title "host copy"
}
unset multiplot
