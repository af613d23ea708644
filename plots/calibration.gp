# Residuals of a fit: predicted against measured, and the error of held-back rows along each axis.
# Use: gnuplot -c calibration.gp DATA OUTPUT svg|png TITLE AXIS [AXIS...]
# DATA is what smp-calibrate --plot writes.
data = ARG1
if (ARG3 eq "png") {
    set terminal pngcairo size 1200,700 font "sans,11"
} else {
    set terminal svg size 1200,700 font "sans,13" background "white"
}
set output ARG2

array axis[4]
axis[1] = ARG5
axis[2] = (ARGC >= 6) ? ARG6 : ""
axis[3] = (ARGC >= 7) ? ARG7 : ""
axis[4] = (ARGC >= 8) ? ARG8 : ""
axes = ARGC - 4

set grid lc rgb "#dddddd"
set border 3
set tics nomirror
set key top left
set logscale x
set format x "%.0s%c"
set multiplot layout 2,3 title ARG4 noenhanced

set logscale y
set xlabel "measured (s)"
set ylabel "predicted (s)"
set format y "%.0s%c"
plot data using 1:2 with points pt 7 ps 0.25 lc rgb "#4477aa" notitle, \
     x with lines lc rgb "#222222" title "equal", \
     1.1 * x with lines dt 2 lc rgb "#999999" title "10 % off", x / 1.1 with lines dt 2 lc rgb "#999999" notitle
unset logscale y

set ylabel "held back: predicted / measured - 1 (%)"
set format y "%g"
set yrange [-60:60]
do for [i = 1:axes] {
    set xlabel axis[i] noenhanced
    plot data using (column(3 + i)):(100 * (exp($3) - 1)) with points pt 7 ps 0.25 lc rgb "#4477aa" notitle, \
         0 with lines lc rgb "#222222" notitle
}
set xlabel "error (%)"
set ylabel "rows"
unset logscale x
set format x "%g"
set xrange [-60:60]
set yrange [0:*]
bin(x) = 4 * floor(x / 4) + 2
plot data using (bin(100 * (exp($3) - 1))):(1) smooth frequency with boxes lc rgb "#4477aa" fill solid 0.5 notitle
unset multiplot
