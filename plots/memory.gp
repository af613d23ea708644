# SPDX-License-Identifier: Apache-2.0
# Memory of one GPU over a step, stacked by kind.
# gnuplot -c memory.gp DATA OUTPUT svg|png TITLE CAPACITY_BYTES PEAK_BYTES
data = ARG1
capacity = real(ARG5) / 2**30
peak = real(ARG6) / 2**30
if (ARG3 eq "png") {
    set terminal pngcairo size 1400,760 font "sans,12" noenhanced
} else {
    set terminal svg size 1100,600 font "sans,12" noenhanced background "white"
}
set output ARG2
set title ARG4 font "sans,14" offset 0,0.3
set xlabel "time in the step, s"
set ylabel "memory, GiB"
set border 3 lc rgb "#707070"
set tics nomirror textcolor rgb "#303030"
set grid ytics lc rgb "#d8d8d8" lw 1 dt 1 back
set key outside right center reverse Left samplen 1.5 spacing 1.25 invert
set style fill solid 0.9 noborder

top = (capacity > peak ? capacity : peak)
set yrange [0:top * 1.08]
stats data using 1 nooutput
last = STATS_max
set xrange [0:last]
set arrow 1 from 0,capacity to last,capacity nohead lw 2 dt 2 lc rgb "#b00020" front
set label 1 sprintf("capacity %.1f GiB", capacity) at last * 0.01,capacity \
    offset 0,0.6 textcolor rgb "#b00020" front
set arrow 2 from 0,peak to last,peak nohead lw 1.5 dt 3 lc rgb "#303030" front
# The two lines may be close: the label of the lower one stands under it.
set label 2 sprintf("peak %.1f GiB (arena + context + buffers)", peak) at last * 0.99,peak \
    right offset 0,(peak > capacity || capacity - peak > 0.08 * top ? 0.6 : -0.7) textcolor rgb "#303030" front

g(x) = x / 2**30
plot data using 1:(0):(g($2)) with filledcurves lc rgb "#9e9e9e" title "context, NCCL (estimate)", \
     data using 1:(g($2)):(g($2+$3)) with filledcurves lc rgb "#1f5fa8" title "parameters", \
     data using 1:(g($2+$3)):(g($2+$3+$4)) with filledcurves lc rgb "#5b9bd5" title "optimizer state", \
     data using 1:(g($2+$3+$4)):(g($2+$3+$4+$5)) with filledcurves lc rgb "#9dc6e8" title "gradients", \
     data using 1:(g($2+$3+$4+$5)):(g($2+$3+$4+$5+$6)) with filledcurves lc rgb "#e6a23c" title "unsharded", \
     data using 1:(g($2+$3+$4+$5+$6)):(g($2+$3+$4+$5+$6+$7)) with filledcurves lc rgb "#4f9d69" title "activations", \
     data using 1:(g($2+$3+$4+$5+$6+$7)):(g($2+$3+$4+$5+$6+$7+$8)) with filledcurves lc rgb "#a05195" title "logits"
