#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# smp-exec from outside: exit statuses, messages, signals, files.  Speaks TAP; runs in the
# build tree.
set -u
. "${srcdir:=.}/tests/tap.sh"
if ! test -x ./smp-exec; then
    echo "1..0 # SKIP smp-exec is not built"
    exit 0
fi
cat >"$work/tiny.json" <<END
{"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "max_position_embeddings": 64, "tie_word_embeddings": false}
END
program=./smp-exec
text="$srcdir/LICENSE"
job="--model $work/tiny.json --cluster cpu --gpus 2 --seq-len 16 --global-batch 8
     --set precision=fp32 --set micro_batch=2"

full_disk() {
    # shellcheck disable=SC2086
    ./smp-exec $job -d "$text" >/dev/full 2>"$work/err"
    test $? -eq 1 && says "standard output: .*No space left" err
}
# Lines of metrics are the same again, but for times; each is an object.
same_again() {
    ends 0 -d "$text" --steps 3 --metrics "$work/a" && ends 0 -d "$text" --steps 3 \
        --metrics "$work/b" --loader-threads 0 || return 1
    sed 's/, "seconds".*/}/' "$work/a" >"$work/a1"
    sed 's/, "seconds".*/}/' "$work/b" >"$work/b1"
    test "$(grep -c '^{"step": [123], .*}$' "$work/a1")" -eq 3 && cmp "$work/a1" "$work/b1"
}
# in_time COMMAND...: until it succeeds, or half a minute has gone.
in_time() {
    tries=0
    until "$@" || test "$tries" -ge 300; do
        tries=$((tries + 1))
        sleep 0.1
    done
}
# interrupted SIGNAL: it comes after a step was written.
interrupted() {
    rm -f "$work/m"
    # shellcheck disable=SC2086
    ./smp-exec $job -d "$text" --steps 1000000 --metrics "$work/m" >"$work/out" \
        2>"$work/err" &
    process=$!
    in_time test -s "$work/m"
    kill -s "$1" "$process"
    wait "$process"
    found=$?
    tail -n 2 "$work/out"
    test "$found" -eq 0 && says "^stopped by a signal after step [0-9]" out &&
        tail -n 1 "$work/m" | grep -q '}$'
}
# Twice, in a step that would take minutes: it does not wait for its end.
killed_by_two() {
    # shellcheck disable=SC2086
    ./smp-exec $job -d "$text" --global-batch 262144 -v >"$work/out" 2>"$work/err" &
    process=$!
    in_time grep -q '^init  all' "$work/out"
    kill -s INT "$process"
    sleep 0.2
    kill -s INT "$process"
    wait "$process"
    found=$?
    echo "status $found"
    test "$found" -gt 128
}
# A data file that becomes shorter, whichever thread reads it: rank, loader, or a stream.
cut_down() {
    for late in "" --async "--loader-threads 0"; do
        cp "$text" "$work/cut"
        rm -f "$work/m"
        # shellcheck disable=SC2086
        ./smp-exec $job -d "$work/cut" --steps 1000000 --metrics "$work/m" $late >"$work/out" \
            2>"$work/err" &
        process=$!
        in_time test -s "$work/m"
        : >"$work/cut"
        wait "$process"
        found=$?
        echo "status $found $late"
        test "$found" -eq 1 && test "$(wc -l <"$work/err")" -eq 1 &&
            says "^smp-exec: .* has become shorter while" err || return 1
    done
}
# Tasks of a trace's first process: name, operation, layer, micro-batch, stream.
tasks_of() {
    sed -n 's/^{"name":"\([^"]*\)".*"ph":"X".*"pid":1,"tid":\([0-9]*\),"args":{\("op":.*"micro_batch":[0-9]*\),.*/\1 \2 \3/p' \
        "$1" | LC_ALL=C sort
}
# The measured step has the tasks of the predicted one, so both open beside each other.
same_tasks() {
    # shellcheck disable=SC2086
    ./smp-sim $job --trace "$work/predicted.json" >/dev/null || return 1
    ends 0 -d "$text" --steps 1 --trace "$work/measured.json" || return 1
    tasks_of "$work/predicted.json" >"$work/predicted"
    tasks_of "$work/measured.json" >"$work/measured"
    test "$(wc -l <"$work/predicted")" -gt 100 && cmp "$work/predicted" "$work/measured"
}
# Each stored task with its times and the error of their ratio; a total; arenas that are equal.
compares() {
    ends 0 -d "$text" --steps 2 --compare || return 1
    error=' *-*[0-9][0-9.]*\(%\| times\)$'
    grep -q "^forward  *attention.core  *4  .* [mnu]*s  .* [mnu]*s $error" "$work/out" &&
        grep -q "^all tasks .* [mu]*s  .* [mu]*s $error" "$work/out" &&
        grep -q "^step .* [mu]*s  .* [mu]*s $error" "$work/out" &&
        test -z "$(cut -c1-42 "$work/out" | grep '^[a-z_]* .* [0-9]$' | sort | uniq -d)" &&
        ! grep -q '^.\{81\}' "$work/out" &&
        grep -q '^arena bytes  *\([0-9][0-9]*\)  *\1$' "$work/out" &&
        grep -q '^host bytes  *\([0-9]*\)  *\1$' "$work/out" && return 0
    cat "$work/out"
    return 1
}
# A step of no number, whether tasks run when issued or a step late: after the same lines.
nan_later() {
    for late in "" --async; do
        # shellcheck disable=SC2086
        wrong 1 "step 3: the loss is nan; the first task whose result is not finite is .* in " \
            -d "$text" --steps 9 --set optimizer=sgd --clip 0 --lr 1e6 $late || return 1
        cp "$work/out" "$work/out$late"
    done
    test "$(grep -c '^step [123]  ' "$work/out")" -eq 3 || return 1
    sed 's/  [0-9]* tok.*//' "$work/out" >"$work/a1"
    sed 's/  [0-9]* tok.*//' "$work/out--async" | cmp - "$work/a1"
}
# Data that cannot be read end the run when their step would begin, and not before.
far_later() {
    wrong 2 "later: token 255 at 900: .* has 200" -d "$work/later" --no-shuffle \
        --model "$work/small.json" --metrics "$work/m" "$@" || return 1
    # a step has 8 samples of 16 tokens
    test "$(sed -n 's/^{"step": \([0-9]*\).*/\1/p' "$work/m" | tail -n 1)" -eq 7
}
# In the midst of a validation that would take minutes.
interrupted_validation() {
    rm -f "$work/m"
    cp "$text" "$work/more"
    for i in 1 2 3 4 5; do
        cat "$work/more" "$work/more" "$work/more" >"$work/much"
        mv "$work/much" "$work/more"
    done
    # shellcheck disable=SC2086
    ./smp-exec $job -d "$text" -e "$work/more" --eval-batches 100000 --steps 1 --metrics \
        "$work/m" --global-batch 16 >"$work/out" 2>"$work/err" &
    process=$!
    in_time test -s "$work/m"
    kill -s INT "$process"
    wait "$process"
    found=$?
    cat "$work/out"
    test "$found" -eq 0 && says "^stopped by a signal after step 1$" out &&
        test "$(wc -l <"$work/m")" -eq 1
}
# written_over TEXT ARGUMENT...: refused with it, and data, plan and model are as they were.
written_over() {
    message=$1
    shift
    wrong 2 "is also what $message" "$@" && cmp "$text" "$work/own" &&
        cmp "$work/plan.json" "$work/p.json" && test ! -e "$work/twice"
}
over_inputs() {
    # shellcheck disable=SC2086
    ./smp-plan ${job%%--set*} --pin micro_batch=2 --pin precision=fp32 -o "$work/plan.json" \
        >/dev/null || return 1
    cp "$text" "$work/own" && cp "$work/plan.json" "$work/p.json" || return 1
    ln -s own "$work/link"
    for output in --metrics --trace; do
        written_over "is read as --data: give another $output" -d "$work/own" $output "$work/own" &&
            written_over "is read as --eval" -d "$text" -e "$work/own" $output "$work/link" &&
            written_over "is read as --init-rules" -d "$text" --init-rules "$work/rules" \
                $output "$work/rules" || return 1
    done
    written_over "is read as --model" -d "$text" --trace "$work/tiny.json" &&
        written_over "--metrics writes: give another --trace" -d "$text" \
            --metrics "$work/twice" --trace "$work/./twice" &&
        (job="" && written_over "is read as the plan" "$work/p.json" -d "$text" \
            --metrics "$work/p.json")
}
# Standard output holds the file and nothing else; the lines go to standard error.
alone() {
    ends 0 -d "$text" --steps 2 --compare -v --metrics - && says "^step 2  loss" err &&
        says "^arena bytes" err && test "$(grep -c '^{"step": .*}$' "$work/out")" -eq 2 &&
        test "$(wc -l <"$work/out")" -eq 2 && ends 0 -d "$text" --dry-run -v --trace - &&
        says "^step 1  loss" err && says "^ranks 2" err && cp "$work/out" "$work/alone.json" &&
        ends 0 -d "$text" --dry-run --trace "$work/beside.json" &&
        test "$(head -c 1 "$work/alone.json")" = "{" &&
        test "$(wc -l <"$work/alone.json")" -eq "$(wc -l <"$work/beside.json")"
}
# refused OPTIONS: MESSAGE, a line each.
refused() {
    while IFS=: read -r arguments message; do
        # shellcheck disable=SC2086
        wrong 2 "${message# }" -d "$text" $arguments </dev/null || return 1
    done
}
ranges() {
    refused <<END
--beta1 1: --beta1: '1': must be a number from 0 to less than 1
--beta2 -1: --beta2: '-1': must be a number from 0 to less than 1
--momentum nan: --momentum: 'nan': must be a number from 0 to less than 1
--lr 1e10: --lr: '1e10': must be a number from 0 to 1e6
--lr -1: --lr: '-1': must be a number from 0 to 1e6
--threads 4294967295: --threads: '4294967295': must be a whole number from 1 to 1024
--threads 0: --threads: '0': must be a whole number from 1 to 1024
--eps 0: --eps: '0': must be a number from 1e-30 to 1e6
--timeout 0: --timeout: '0': must be a number from 0.001 to 1e9
--loss-scale 0: --loss-scale: '0': must be dynamic, or a number from 1e-30 to 1e30
--init-scale 0: --init-scale: '0': must be a number from 1e-30 to 1e30
--min-scale 0: --min-scale: '0': must be a number from 1e-30 to 1e30
END
}
without_effect() {
    refused <<END || return 1
--eval-batches 2: --eval-batches is of --eval FILE, which is missing
--init-scale 4: --init-scale is of a dynamic loss scale, which only precision=fp16 has
--set precision=fp16 --loss-scale 2 --init-scale 4: and --loss-scale gives a fixed one
--min-lr 1e-5: --min-lr is where --schedule linear or cosine ends
--schedule cosine --min-lr 1e-3: --min-lr: 0.001 is above --lr, 0.0006
--pad longest --pack-attention none: --pack-attention is of packed rows: not with --pad
END
    wrong 2 "--pad: bucket:17: must be at most 16, the sequence length" -d "$text" \
        --pad bucket:17
}
bad_rules() {
    while IFS=: read -r rule message; do
        echo "* $rule" >"$work/bad"
        wrong 2 "bad:1: ${message# }" -d "$text" --init-rules "$work/bad" </dev/null || return 1
    done <<END
constant nan: constant: 'nan' is not finite in fp32
constant 1e39: constant: '1e39' is not finite in fp32
constant x: constant: 'x' is no number
constant: constant needs 1 number behind it
normal 1: normal needs 2 numbers behind it
normal 0 -1: normal: DEVIATION, -1, is below 0
uniform 2 1: uniform: HIGH, 1, is below LOW, 2
END
}
wrong_kinds() {
    wrong 2 "Is a directory" -d "$text" --init-rules "$work" &&
        wrong 2 "is no directory: --tensorboard needs one" -d "$text" --tensorboard "$text" &&
        wrong 2 "is a directory: --trace needs a file" -d "$text" --trace "$work" &&
        wrong 2 "not a file with tokens" -d "$work"
}
least() { # bytes of the arena, as --dry-run says
    ends 0 -d "$text" --dry-run && sed -n 's/.*device arena \([0-9]*\) bytes.*/\1/p' "$work/out"
}
memory() {
    bytes=$(least)
    ends 0 -d "$text" --steps 1 --device-memory "$bytes" &&
        wrong 3 "$((bytes - 1)) bytes: the step program of rank 0 needs $bytes" \
            -d "$text" --device-memory "$((bytes - 1))"
}
# Documents of which there are fewer than a global batch (8): said once, and trained on.
repeats() {
    ends 0 -d "$work/short" --eot 10 --pad longest --steps 1 &&
        ! says "^warning: " out >/dev/null && ends 0 -d "$work/three" --eot 10 --pad longest --steps 2 &&
        test "$(grep -c '^warning: .*: there are 3, a global batch has 8$' "$work/out")" -eq 1
}
./smp-exec --help >"$work/help" 2>&1
printf 'abc\nde\ngh\n' >"$work/three"
printf 'abc\n' >"$work/one"
printf '%s ' 0123456789 0123456789 0123456789 0123456789 0123456789 >"$work/few"
printf 'AB\377' >"$work/far"
cat "$text" >>"$work/far"
head -c 900 "$text" >"$work/later"
cat "$work/far" "$text" | tail -c +3 >>"$work/later"
head -c 400 /dev/zero | tr '\0' '\n' >"$work/ends"
i=0
while test $i -lt 40; do echo ab; i=$((i + 1)); done >"$work/short"
printf 'abc' >"$work/odd.bin"
echo 'head zeros' >"$work/rules"
echo '*.1.input_layernorm.weight constant 3e38' >"$work/huge"
sed 's/"vocab_size": 256/"vocab_size": 200/' "$work/tiny.json" >"$work/small.json"

echo 1..69
check "help" ends 0 --help
check "trains" ends 0 -d "$text" --steps 2
check "says what it does" says "^step 2  loss 5\.[0-9]*  norm .* lr .* tok/s  mfu .*%" out
check "the same again, whoever reads" same_again
check "verbose" ends 0 -d "$text" --steps 1 -v
check "says where ranks are" says \
    "^rank 1 of 2  local rank 1  tensor 0 context 0 shard 1 expert 0 replica 0  device cpu" out
check "says what tensors start from" says \
    "^init  model.layers.1.mlp.down_proj.weight  *\[32, 48\]  *normal(0, 0.02)" out
check "says that all have values" says "^init  all [0-9]* elements of rank 0 have values" out
check "validates" ends 0 -d "$text" -e "$srcdir/README.md" --eval-every 2 --steps 3
check "says the validation loss" says "^step 3  validation loss 5\." out
check "measures the last step" ends 0 -d "$work/short" --eot 10 --pad bucket:4 --steps 2 \
    --trace "$work/run.json"
grep -o '"flops":[0-9]*' "$work/run.json" >"$work/trained"
check "and the same where a validation of other lengths follows it" ends 0 -d "$work/short" \
    --eot 10 --pad bucket:4 --steps 2 --trace "$work/run.json" -e "$text"
grep -o '"flops":[0-9]*' "$work/run.json" >"$work/validated"
check "by its shape" cmp "$work/trained" "$work/validated"
check "threads beyond reason" wrong 2 "--threads: .100000.: must be a whole number from 1 to 1024" -d "$text" \
    --threads 100000
check "no such rule of loss scaling" wrong 2 "--loss-scale-rule: apex: must be torch or smp" \
    -d "$text" --loss-scale-rule apex
check "a number of the other rule" wrong 2 "are of --loss-scale-rule smp" -d "$text" \
    --min-scale 4
check "SMP v1's loss scaling" ends 0 -d "$text" --steps 2 --set precision=fp16 \
    --loss-scale-rule smp --init-scale 32
check "says the scale" says "^step 2 .* scale 32 " out
check "measured tasks are the predicted ones" same_tasks
check "compares" compares
awk 'BEGIN { for (i = 1; i <= 40; i++) { for (k = 0; k < i; k++) printf "a"; print "" } }' \
    >"$work/lengths"
check "rows of many lengths" ends 0 -d "$work/lengths" --eot 10 --pad longest --no-shuffle \
    --seq-len 40 --global-batch 2 --set micro_batch=1 --steps 16
check "warns of programs that keep coming" says "^warning: 8 programs compiled in" out
check "a setting without effect" ends 0 -d "$text" --steps 1 -v
check "is said to have none" says "^fsdp_cache_flush_warnings has no effect" out
check "pads lines" ends 0 -d "$text" --eot 10 --pad bucket:4 --steps 2
check "no data" wrong 2 "--data FILE is missing"
check "data that are not there" wrong 2 "none: No such file" -d "$work/none"
check "too few data" wrong 2 "a sequence of 64 needs 65" -d "$work/few" --seq-len 64
check "truncated data" wrong 2 "truncated" -d "$work/odd.bin"
check "a token beyond the vocabulary" wrong 2 "far: token 255 at 2: .* has 200" \
    -d "$work/far" --no-shuffle --model "$work/small.json"
check "an end of documents that cannot come" wrong 2 "--eot: 256: the model's vocabulary has 256" \
    -d "$text" --eot 256
check "such a token in a later step" far_later
check "which was begun beside the one before" far_later --async
check "documents without a target" wrong 2 "ends: 400 documents of one token" -d "$work/ends" \
    --eot 10
check "a wrong shape" wrong 2 "--pad: square: must be" -d "$text" --pad square
check "rules for nothing" wrong 2 "rules:1: 'head' matches no parameter" -d "$text" \
    --init-rules "$work/rules"
check "a plan for another stack" wrong 2 "for other software is simulated, not executed" \
    -d "$text" --set stack=fsdp2
check "a plan beyond the memory" memory
check "no number" wrong 1 "step 1: the loss is nan; .* in forward of layer 1, micro-batch 0" \
    -d "$text" --init-rules "$work/huge" --metrics "$work/nan"
check "which is null in metrics" grep -q '"loss": null, "gradient_norm": null,' "$work/nan"
check "no number in a later step" nan_later
check "a full disk" full_disk
check "a full disk of metrics" wrong 1 "/dev/full: writing failed: No space left" -d "$text" \
    --metrics /dev/full
check "Ctrl-C ends the run after its step" interrupted INT
check "so does a request to end" interrupted TERM
check "and a validation" interrupted_validation
check "nothing is trained" wrong 1 "step 1[78]: the last 16 steps updated nothing: gradients" \
    -d "$text" --steps 100 --lr 1e6
check "a validation loss of no number" wrong 1 "step 1: the validation loss is nan" -d "$text" \
    --steps 1 --lr 1e6 --weight-decay 1e6 --clip 0 -e "$text"
check "a plan for a larger machine" wrong 3 "of rank 0 needs .*, and this machine's memory has" \
    --model Llama-3.1-70B -d "$text"
check "a second Ctrl-C kills" killed_by_two
check "memory beyond 4 GiB" ends 0 -d "$text" --steps 1 --device-memory 8589934592
check "validation of nothing" wrong 2 "--eval-every is of --eval FILE" -d "$text" --eval-every 2
check "a comparison of other lengths" wrong 2 "--compare predicts steps of full length" \
    -d "$text" --pad longest --compare
check "a trace that cannot be written" wrong 1 "none/t.json: cannot be written" -d "$text" \
    --steps 100000 --trace "$work/none/t.json"
check "a loss scale by its name" ends 0 -d "$text" --steps 1 --loss-scale dynamic
check "no loss scale" wrong 2 "--loss-scale: 'big': must be" -d "$text" --loss-scale big
check "a data file that is cut while it is read" cut_down
check "fewer samples than a global batch" repeats
check "fewer samples than data ranks" wrong 2 "1 sample; a round of 2 data ranks .*--no-drop-last" \
    -d "$work/one" --eot 10 --pad longest
check "which can be filled up" ends 0 -d "$work/one" --eot 10 --pad longest --no-drop-last \
    --steps 1
check "no output is written over what is read or another" over_inputs
check "a file on standard output is alone there" alone
check "of which there is one" wrong 2 "standard output: is also what --metrics writes" \
    -d "$text" --metrics - --trace -
check "the default warmup" ends 0 -d "$text" --steps 1 --warmup 0
check "one range for each number" ranges
check "options that could have no effect" without_effect
check "rules that are wrong" bad_rules
check "files and directories in each other's place" wrong_kinds
job=
check "a model for a plan" wrong 2 "small.json: is a model's config.json and no plan: smp-plan" \
    "$srcdir/examples/small.json" -d "$text"
