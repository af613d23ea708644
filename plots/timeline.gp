# SPDX-License-Identifier: Apache-2.0
# What runs when on one GPU: a row per stream; the whole step, the first layers and the start
# of backward.
# Use: gnuplot -c timeline.gp DATA OUTPUT svg|png TITLE ROWS WINDOWS
# DATA is what smp-sim --timeline-plot writes; ROWS names the rows; WINDOWS holds the start
# and the end of each panel in ms.
data = ARG1
job = ARG4
rows = ARG5
windows = ARG6
n = words(rows)

height = 118 + 3*(84 + 27*n)
if (ARG3 eq "png") {
    set terminal pngcairo size 1400,height font "sans,11"
} else {
    set terminal svg size 1400,height font "sans,13" background "white"
}
set termoption noenhanced
set output ARG2

array paint[11] = [0x4477aa, 0xee7733, 0xbbccdd, 0x228833, 0xaa3377, 0x66ccee, \
                   0xccbb44, \
                   0x99cce6, 0xf2dc8c, 0xf4b0a8, 0x888888]
names = "matmul attention 'memory bound' all-gather reduction all-to-all 'host copy' \
    forward recompute backward update"
panels = "'whole step' 'forward of the first layers' 'start of backward'"
colour(i) = paint[int(i) + 1]

set border 3 lc rgb "#555555"
set tics nomirror out textcolor rgb "#333333"
set grid x lc rgb "#d8d8d8" lt 1
set style fill solid 1.0 noborder
set yrange [n - 0.4:-0.6]
set ytics scale 0 ()
do for [i = 1:n] {
    set ytics add (word(rows, i) i - 1)
}
set lmargin 11
set rmargin 3
unset key

head = 100.0/height
each = (1 - head - 10.0/height)/3 # ten pixels are left below
set multiplot
cut = strstrt(job, "\n")
set label 2 job[1:cut - 1] at screen 0.5, screen 1 - 22.0/height center font ",15"
set label 3 job[cut + 1:*] at screen 0.5, screen 1 - 46.0/height center \
    textcolor rgb "#555555"
x = 0.06
y = 1 - 76.0/height
do for [i = 0:10] {
    set object i + 1 rectangle from screen x, screen y - 7.0/height \
        to screen x + 0.012, screen y + 7.0/height fc rgb colour(i) fs solid noborder
    set label 10 + i word(names, i + 1) at screen x + 0.016, screen y left font ",11"
    x = x + 0.026 + 0.0062*strlen(word(names, i + 1)) + (i == 6 ? 0.03 : 0)
}
do for [p = 1:3] {
    set tmargin at screen 1 - head - (p - 1)*each - 24.0/height
    set bmargin at screen 1 - head - p*each + 50.0/height
    from = real(word(windows, 2*p - 1))
    to = real(word(windows, 2*p))
    scale = to > 2000 && p == 1 ? 1000.0 : 1.0
    set xlabel scale > 1 ? "time (s)" : "time (ms)" offset 0, 0.6
    set xrange [from/scale:to/scale]
    set label 1 word(panels, p) at graph 0, graph 1 offset 0, 0.7 textcolor rgb "#333333" \
        font ",12"
    plot data index p - 1 using ($2/scale):1:($2/scale):($3/scale):($1 - 0.4):($1 + 0.4): \
             (colour($4)) with boxxyerror lc rgb variable notitle, \
         data index p - 1 using (0.5*($2 + $3)/scale):1: \
             (7*strlen(strcol(5)) < $6 ? strcol(5) : ""): \
             ($4 == 0 || $4 == 3 || $4 == 4 ? 0xffffff : 0x222222) \
             with labels textcolor rgb variable font ",9" notitle
    # The head stands on the first panel only.
    unset label
    unset object
}
unset multiplot
