#!/usr/bin/env python3
"""Compare the latency of encoding one text with transformers: an encoder of all-MiniLM-L6-v2's shape with random weights,
in rltrain with an adapter of rank 8 on query and value, in transformers without one.

usage: scripts/compat.sh scripts/latency.py [--tokens N ...] [--threads N ...] [--rounds N] [--cpu] [--out FILE]

Both sides alternate. Writes the best and the median milliseconds of the best round, by threads and tokens. Settings already
in the file are skipped. --cpu counts CPU time instead of wall time, for busy machines.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

import torch
from transformers import BertConfig, BertModel

HERE = os.path.dirname(os.path.abspath(__file__))
REPETITIONS, WARM_UP = 100, 10


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokens", type=int, nargs="+", default=[8, 16, 32, 128])
    p.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--cpu", action="store_true", help="count CPU time instead of wall time")
    p.add_argument("--ours", default=os.path.join(HERE, "..", "bin", "rltrain"))
    p.add_argument("--out", default=os.path.join(HERE, "..", "docs", "results", "latency.json"))
    return p.parse_args()


def ours(program, tokens, threads, cpu):
    flags = f"--mode infer --shape minilm --batch 1 --seq {tokens} --threads {threads} --reps {REPETITIONS}"
    done = subprocess.run([program, "bench", "classifier_step", "--json", *flags.split()], check=True,
                          stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout)
    best, median = ("cpu_s", "cpu_median_s") if cpu else ("best_s", "median_s")
    return 1000 * result[best], 1000 * result[median]


def theirs(model, tokens, clock):
    """Time a forward pass with mean pooling."""
    ids = torch.randint(1000, 30000, (1, tokens), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    times = []
    with torch.inference_mode():
        for i in range(REPETITIONS + WARM_UP):
            began = clock()
            model(input_ids=ids, attention_mask=mask).last_hidden_state.mean(1)
            if i >= WARM_UP:
                times.append(1000 * (clock() - began))
    return min(times), statistics.median(times)


def main():
    a = arguments()
    clock = time.process_time if a.cpu else time.perf_counter
    torch.manual_seed(0)
    model = BertModel(BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536), add_pooling_layer=False)
    model.eval()
    results = {}
    if os.path.exists(a.out):
        with open(a.out) as f:
            results = json.load(f)
    for threads in a.threads:
        torch.set_num_threads(threads)
        for tokens in a.tokens:
            name = f"{threads} threads, {tokens} tokens"
            if name in results:
                continue
            rounds = {"ours": [], "peer": []}
            for _ in range(a.rounds):
                rounds["ours"].append(ours(a.ours, tokens, threads, a.cpu))
                rounds["peer"].append(theirs(model, tokens, clock))
            best = {side: {"best_ms": round(min(r[0] for r in times), 3), "median_ms": round(min(r[1] for r in times), 3)}
                    for side, times in rounds.items()}
            results[name] = {"threads": threads, "tokens": tokens, "cpu": a.cpu, **best, "load1": os.getloadavg()[0],
                             "ratio": round(best["peer"]["best_ms"] / best["ours"]["best_ms"], 2)}
            print(name, results[name], flush=True)
            with open(a.out + ".part", "w") as f:
                json.dump(results, f, indent=1)
                f.write("\n")
            os.replace(a.out + ".part", a.out)


if __name__ == "__main__":
    main()
