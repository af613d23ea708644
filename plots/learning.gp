# A training run: loss of each step, and the validation loss.
# Use: gnuplot -c learning.gp DATA OUTPUT svg|png
# DATA has two blocks: "step loss" of steps, then of validations.
data = ARG1
if (ARG3 eq "png") {
    set terminal pngcairo size 900,500 font "sans,11"
} else {
    set terminal svg size 900,500 font "sans,13" background "white"
}
set output ARG2

set grid lc rgb "#dddddd"
set border 3
set tics nomirror
set key top right reverse Left samplen 2
set xlabel "step"
set ylabel "loss (nats a byte)"
set yrange [0:*]
plot data index 0 using 1:2 with lines lc rgb "#4477aa" title "training", \
     data index 1 using 1:2 with linespoints pt 7 ps 0.6 lc rgb "#ee6677" title "validation"
