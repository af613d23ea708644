#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Calculon and smp-plan on the same questions; see README.md.

Calculon is asked as its own search asks it, one process, one thread: for each execution
Llm(app, logger), compile, run, get_stats_json.  Once as checked out, once without its debug
logging, whose arguments are formatted and then discarded: those statements are taken out of
the module in memory; no file is changed.
"""
import argparse
import ast
import itertools
import json
import logging
import os
import subprocess
import sys
import time

# The sizes of Llama-3.1-405B in Calculon's terms, and the settings that both sides know.
APPLICATION = {"hidden": 16384, "feedforward": 53248, "seq_size": 8192, "attn_heads": 128,
               "attn_size": 128, "num_blocks": 126}
RANKS = 16384
BATCH = 16384


def executions():
    """Tensor, pipeline and data parallelism, micro-batch, recomputation, sharded optimizer,
    overlap.  Calculon shards the optimizer and gradients but not the weights, so this model
    fits no GPU without a pipeline: 355e9 weights by its count, 89 GB each in 8 parts."""
    for tensor, pipeline, micro_batch, recompute, sharding, overlap in itertools.product(
            (1, 2, 4, 8), (1, 2, 4, 8, 16, 32), (1, 2, 4), ("full", "attn_only", "none"),
            (True, False), (True, False)):
        data = RANKS // (tensor * pipeline)
        if BATCH % (data * micro_batch) != 0:
            continue
        yield {"num_procs": RANKS, "tensor_par": tensor, "pipeline_par": pipeline,
               "data_par": data,
               "tensor_par_net": 0, "pipeline_par_net": 1, "data_par_net": 1,
               "batch_size": BATCH, "microbatch_size": micro_batch, "datatype": "float16",
               "fused_activation": True, "attention_type": "multihead",
               "activation_recompute": recompute, "pipeline_interleaving": 1,
               "optimizer_sharding": sharding,
               "tensor_par_comm_type": "rs_ag" if tensor > 1 else "ar",
               "tensor_par_overlap": "none", "seq_par_ag_redo": False,
               "data_par_overlap": overlap, "weight_offload": False,
               "activations_offload": False, "optimizer_offload": False, "training": True}


class WithoutDebug(ast.NodeTransformer):
    """Removes statements that are nothing but a call of `<something>.log.debug`."""

    def visit_Expr(self, node):
        call = node.value
        if (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
                and call.func.attr == "debug" and isinstance(call.func.value, ast.Attribute)
                and call.func.value.attr == "log"):
            return ast.copy_location(ast.Pass(), node)
        return node


def without_debug(module):
    """The class Llm of a module whose debug statements are gone."""
    with open(module.__file__, encoding="utf-8") as source:
        tree = WithoutDebug().visit(ast.parse(source.read()))
    names = dict(module.__dict__)
    exec(compile(ast.fix_missing_locations(tree), module.__file__, "exec"), names)
    return names["Llm"]


def ask(llm, system, seconds):
    """Feasible answers, refused ones and the time they took; whole rounds over executions."""
    good = bad = 0
    logger = logging.Logger("peer")
    read_execution = getattr(llm.Execution, "from_json", llm.Execution)
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for execution in executions():
            try:
                model = llm(llm.Application(APPLICATION), logger)
                model.compile(system, read_execution(execution))
                model.run(system)
                model.get_stats_json(False)
                good += 1
            except (llm.Error, AssertionError):
                bad += 1
    return good, bad, time.perf_counter() - begin


def ask_smp_plan(program):
    """The search over tensor and shard degrees, micro-batch, checkpointing and the rest."""
    command = [program, "--model", "Llama-3.1-405B", "--cluster", "dgx-h100", "--nodes", "2048",
               "--seq-len", "8192", "--global-batch", str(BATCH), "--timing", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{program}: {done.stderr.strip()}")
    return json.loads(done.stdout)["search"]


def calculon_rates(arguments):
    """Feasible answers a second, as checked out and without debug logging."""
    if not os.path.isdir(os.path.join(arguments.calculon, "calculon")):
        sys.exit(f"{arguments.calculon}: no checkout of Calculon (no directory calculon in it)")
    sys.path[0] = arguments.calculon  # in the place of this script's, which has its name
    from calculon import System  # pylint: disable=import-outside-toplevel
    import calculon.llm.llm as module  # pylint: disable=import-outside-toplevel
    path = arguments.system or f"{arguments.calculon}/systems/h100_80g_nvl8.json"
    with open(path, encoding="utf-8") as text:
        system = System(json.load(text))
    rates = {}
    for name, llm in (("as checked out", module.Llm),
                      ("without debug logging", without_debug(module))):
        good, bad, seconds = ask(llm, system, arguments.seconds)
        if good == 0:
            sys.exit(f"Calculon refused all {bad} executions")
        rates[name] = good / seconds
        print(f"Calculon, {name}: {good} feasible, {bad} refused in {seconds:.2f} s: "
              f"{good / seconds:.0f} feasible/s")
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("calculon", help="a checkout of github.com/calculon-ai/calculon")
    parser.add_argument("--system", help="its system file; default: h100_80g_nvl8.json")
    parser.add_argument("--smp-plan", default="smp-plan", help="the program; default: in PATH")
    parser.add_argument("--seconds", type=float, default=10, help="for each way of asking")
    arguments = parser.parse_args()

    search = ask_smp_plan(arguments.smp_plan)
    decided = search["enumerated"] / search["seconds"]
    print(f"smp-plan: {search['enumerated']} candidates decided, {search['evaluated']} of them "
          f"simulated, in {search['seconds']:.3f} s: {decided:.0f} candidates/s")
    for name, rate in calculon_rates(arguments).items():
        print(f"smp-plan decides {decided / rate:.3g} times as many a second as Calculon "
              f"{name} evaluates")


if __name__ == "__main__":
    main()
