#!/usr/bin/env python3
"""Measures `rltrain bench classifier_step` beside a peer that takes the same flags and prints the same figures.

usage: bench_peers.py PEER_PYTHON PEER_SCRIPT [--tuned LIBRARY] [--reps N] [--rounds N] [--out FILE]

Each case runs ours, the peer and, with --tuned, the peer with LIBRARY preloaded, in turns, --rounds times; the best
of all repetitions counts. A case in which other processes disturbed a side's every turn is marked and measured again
by the next call; the other cases that --out already holds are not. --tuned is for a library that defines mkl_serv_intel_cpu_true, which sends MKL down the
AVX512 path where the processor is not Intel's.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess

CASES = {
    "sft b32 s32": "--mode sft --batch 32 --seq 32",
    "sft b32 s32 mixed": "--mode sft --batch 32 --seq 32 --mixed",
    "ppo b32 s32": "--mode ppo --batch 32 --seq 32",
    "infer b32 s32": "--mode infer --batch 32 --seq 32",
    "sft b32 s128 mixed": "--mode sft --batch 32 --seq 128 --mixed",
}
HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("python")
    p.add_argument("script")
    p.add_argument("--tuned", help="library to preload into the peer for a third column")
    p.add_argument("--reps", type=int, default=3, help="undisturbed repetitions of a turn")
    p.add_argument("--rounds", type=int, default=2, help="turns of each side")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--ours", default=os.path.join(HERE, "..", "bin", "rltrain"))
    p.add_argument("--out", default=os.path.join(HERE, "..", "docs", "results", "bench_classifier.json"))
    return p.parse_args()


def measure(command, preload=None):
    env = dict(os.environ, LD_PRELOAD=preload) if preload else None
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def merge(turns):
    """One result of several turns: the best time, the median of medians, the sum of repetitions, the least memory."""
    best = dict(min(turns, key=lambda t: t["best_s"]))
    best["median_s"] = statistics.median(t["median_s"] for t in turns)
    for key in ("reps", "clean_reps"):
        best[key] = sum(t[key] for t in turns)
    for key in ("peak_rss_mb", "step_extra_mb"):
        best[key] = min(t[key] for t in turns)
    best["load1"] = max(t["load1"] for t in turns)
    return best


def run(case, a):
    flags = shlex.split(CASES[case]) + ["--reps", str(a.reps), "--threads", str(a.threads)]
    sides = {"ours": ([a.ours, "bench", "classifier_step", "--json"] + flags, None),
             "peer": ([a.python, a.script] + flags, None)}
    if a.tuned:
        sides["peer_tuned"] = ([a.python, a.script] + flags, os.path.abspath(a.tuned))
    turns = {name: [] for name in sides}
    for _ in range(a.rounds):
        for name, (command, preload) in sides.items():
            turns[name].append(measure(command, preload))
    result = {name: merge(t) for name, t in turns.items()}
    ours = result["ours"]
    for name in list(sides)[1:]:
        result["ratio_to_" + name] = round(result[name]["best_s"] / ours["best_s"], 3)
    result["disturbed"] = any(side["clean_reps"] < a.reps for side in (merge(t) for t in turns.values()))
    result["memory_of_peer"] = round(ours["step_extra_mb"] / result["peer"]["step_extra_mb"], 3)
    return result


def main():
    a = arguments()
    results = {}
    if os.path.exists(a.out):
        with open(a.out) as f:
            results = json.load(f)
    os.makedirs(os.path.dirname(os.path.abspath(a.out)), exist_ok=True)
    for case in CASES:
        if case not in results or results[case]["disturbed"]:
            results[case] = run(case, a)
            with open(a.out + ".part", "w") as f:
                json.dump(results, f, indent=1)
                f.write("\n")
            os.replace(a.out + ".part", a.out)
        r = results[case]
        line = ", ".join(f"{k} {r[k]['best_s']:.3f} s" for k in ("ours", "peer", "peer_tuned") if k in r)
        note = " (disturbed by other processes: no figure to quote)" if r["disturbed"] else ""
        print(f"{case}: {line}; {r['ratio_to_peer']} x the peer's speed with {r['memory_of_peer']} of its memory{note}")


if __name__ == "__main__":
    main()
