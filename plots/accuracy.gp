# Published runs: predicted against measured, step time and peak memory, by source.
# Use: gnuplot -c accuracy.gp DATA OUTPUT svg|png
# DATA is what bench/accuracy --plot writes: a block a source.
data = ARG1
if (ARG3 eq "png") {
    set terminal pngcairo size 1400,700 font "sans,11"
} else {
    set terminal svg size 1400,700 font "sans,13" background "white"
}
set output ARG2

stats data using 1 nooutput
blocks = STATS_blocks
# What was not measured lies below the axes.
seen(c) = column(c) > 0 ? column(c) : 1e-9
set grid lc rgb "#dddddd"
set border 3
set tics nomirror
set logscale xy
set key top left Left reverse samplen 1 noenhanced
set size square
array colour[10] = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", \
                    "#222222", "#dd7711", "#999999", "#117733"]

set multiplot layout 1,2
do for [panel = 0:1] {
    first = 1 + 2 * panel
    set xlabel (panel == 0 ? "measured step time (s)" : "measured peak memory (GiB)")
    set ylabel (panel == 0 ? "predicted step time (s)" : "predicted peak memory (GiB)")
    low = panel == 0 ? 0.1 : 8
    high = panel == 0 ? 200 : 200
    set xrange [low:high]
    set yrange [low:high]
    if (panel == 1) { unset key }
    plot '+' using 1:($1 / 1.1):($1 * 1.1) with filledcurves lc rgb "#e8e8e8" title "within 10 %", \
         for [i = 0:blocks - 1] data index i using (seen(first)):(column(first + 1)) \
             with points pt (i < 10 ? 7 : 9) ps 0.8 lc rgb colour[i % 10 + 1] \
             title columnheader(1), \
         x with lines lc rgb "#888888" notitle
}
unset multiplot
