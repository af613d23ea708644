# SPDX-License-Identifier: Apache-2.0
# Memory of one GPU over the time of a step, by kind.
# Use: gnuplot -c memory.gp DATA OUTPUT svg|png TITLE CAPACITY_BYTES PEAK_BYTES
# DATA is what smp-sim --memory-plot writes.
data = ARG1
job = ARG4
MiB = 2.0**20
GiB = 2.0**30
unit = ARG6 + 0 < GiB ? MiB : GiB
unit_name = unit < GiB ? "MiB" : "GiB"
capacity = ARG5/unit
peak = ARG6/unit
show(bytes) = bytes < GiB ? sprintf("%.0f MiB", bytes/MiB) : sprintf("%.1f GiB", bytes/GiB)

if (ARG3 eq "png") {
    set terminal pngcairo size 1200,680 font "sans,12"
} else {
    set terminal svg size 1200,680 font "sans,14" background "white"
}
set output ARG2

stats data using 1 name "time" nooutput
scale = time_max < 1 ? 1000 : 1
array most[8] # bytes of each kind; found before ranges are set, which stats obeys
do for [i = 1:8] {
    stats data using (column(i + 1)) name "kind" nooutput
    most[i] = kind_max
}

set termoption noenhanced
cut = strstrt(job, "\n")
set label 1 job[1:cut - 1] at screen 0.5, screen 0.968 center font ",15"
set label 2 job[cut + 1:*] at screen 0.5, screen 0.93 center textcolor rgb "#555555"
set tmargin at screen 0.89
set xlabel time_max < 1 ? "time (ms)" : "time (s)"
set ylabel sprintf("memory (%s)", unit_name)
set xrange [0:scale*time_max]
# A job that needs little would be a line on the axis: its capacity is only named then.
small = peak < 0.1*capacity
top = small || peak > capacity ? peak : capacity
set yrange [0:1.1*top]
set border 3 lc rgb "#555555"
set tics nomirror textcolor rgb "#333333"
set grid y lc rgb "#d8d8d8" lt 1
set grid front
set key at screen 0.775, screen 0.5 left center vertical reverse Left \
    samplen 1.4 spacing 1.3
set style fill solid 1.0 noborder
set style textbox opaque noborder fillcolor rgb "#ffffff" margins 0.6,0.3
set rmargin at screen 0.76

# The lines may be close: the label of the lower one then stands under it.
below(a, b) = a < b && b - a < 0.08*top ? -0.7 : 0.7
if (small) {
    set label sprintf("capacity %s, far above", show(ARG5 + 0)) at graph 0.995, graph 1.015 \
        right front textcolor rgb "#b03030"
} else {
    set arrow from graph 0, first capacity to graph 1, first capacity nohead front \
        lc rgb "#b03030" dt 2 lw 1.8
    set label sprintf("capacity %s", show(ARG5 + 0)) at graph 0.995, first capacity right \
        front boxed offset 0, below(capacity, peak) textcolor rgb "#b03030"
}
set arrow from graph 0, first peak to graph 1, first peak nohead front \
    lc rgb "#222222" dt 3 lw 1.8
set label sprintf("peak with fragmentation %s", show(ARG6 + 0)) at graph 0.995, first peak \
    right front boxed offset 0, below(peak, capacity) textcolor rgb "#222222"

# Height of the stack up to column c.
sum(c) = c < 2 ? 0 : column(c) + sum(c - 1)
names = "'context, NCCL' parameters 'optimizer state' gradients 'unsharded units' \
    'saved activations' 'work space' logits"
colours = "#9a9a9a #4477aa #66ccee #44aa99 #ddcc77 #ee8866 #cc6677 #aa4499"
# Kinds that hold nothing are left out of the legend.
entry(i) = most[i] < 0.5*MiB ? "" : sprintf("%s  %s", word(names, i), show(most[i]))
# From the highest sum down, each area to the axis and over the one before.
plot for [i = 8:1:-1] data using (scale*$1):(sum(i + 1)/unit) with filledcurves y1=0 \
    fc rgb word(colours, i) title entry(i)
