#!/usr/bin/env python3
"""Compare `rltrain bench` with peer scripts that take the same flags and print the same figures.

usage: bench_peers.py PEER_PYTHON PEER_FOLDER [--cases classifier|language] [--only CASE ...] [--tuned LIBRARY]
                      [--cpu] [--reps N] [--rounds N] [--out FILE]

PEER_FOLDER has a script NAME.py for each subcommand of bench. A case runs rltrain, the peer and, with --tuned, the peer
with LIBRARY preloaded, alternating for --rounds rounds; the best repetition counts. If other processes disturbed every
round of a side, the case is marked, and the next call measures it again. Other cases already in --out are skipped.

--tuned   for a library that defines mkl_serv_intel_cpu_true, which makes MKL use AVX512 on non-Intel processors
--cpu     for busy machines: count the CPU time of all threads and child processes instead of wall time; together with
          --threads 1 this excludes threads waiting for each other
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess

# Name of the results file -> name of the case -> subcommand, flags, flags only for the peer, flags only for rltrain.
SETS = {
    "classifier": {
        "sft b32 s32": ("classifier_step", "--mode sft --batch 32 --seq 32"),
        "sft b32 s32 mixed": ("classifier_step", "--mode sft --batch 32 --seq 32 --mixed"),
        "ppo b32 s32": ("classifier_step", "--mode ppo --batch 32 --seq 32"),
        "sft b32 s32 bf16, peer fp32": ("classifier_step", "--mode sft --batch 32 --seq 32", "", "--dtype bf16"),
        "sft b32 s32 bf16, peer autocast": ("classifier_step", "--mode sft --batch 32 --seq 32", "--autocast", "--dtype bf16"),
        "infer b32 s32": ("classifier_step", "--mode infer --batch 32 --seq 32"),
        "sft b32 s128 mixed": ("classifier_step", "--mode sft --batch 32 --seq 128 --mixed"),
    },
    "language": {
        "lora_step fp32": ("lora_step", "--shape smol135"),
        "lora_step fp32 mixed, peer padded": ("lora_step", "--shape smol135", "--layout padded", "--layout mixed"),
        "lora_step fp32 mixed, peer padding-free": ("lora_step", "--shape smol135", "--layout free", "--layout mixed"),
        "lora_step bf16": ("lora_step", "--shape smol135 --dtype bf16"),
        "lora_step bf16 mixed, peer padded": ("lora_step", "--shape smol135 --dtype bf16", "--layout padded", "--layout mixed"),
        "lora_step bf16 mixed, peer padding-free": ("lora_step", "--shape smol135 --dtype bf16", "--layout free", "--layout mixed"),
        "logprob": ("logprob", ""),
        "logprob with gradient": ("logprob", "--grad"),
        "logprob with gradient, peer TRL": ("logprob", "--grad", "--impl trl"),
        "generate tiny fp32 b1": ("generate", "--shape tiny --dtype fp32 --batch 1"),
        "generate tiny fp32 b8": ("generate", "--shape tiny --dtype fp32 --batch 8"),
        "generate tiny fp32 b32": ("generate", "--shape tiny --dtype fp32 --batch 32"),
        "generate smol135 fp32 b1": ("generate", "--shape smol135 --dtype fp32 --batch 1"),
        "generate smol135 fp32 b8": ("generate", "--shape smol135 --dtype fp32 --batch 8"),
        "generate smol135 fp32 b32": ("generate", "--shape smol135 --dtype fp32 --batch 32"),
        "generate smol135 bf16 b1": ("generate", "--shape smol135 --dtype bf16 --batch 1"),
        "generate smol135 bf16 b8": ("generate", "--shape smol135 --dtype bf16 --batch 8"),
        "generate smol135 bf16 b32": ("generate", "--shape smol135 --dtype bf16 --batch 32"),
        "grpo_step tiny": ("grpo_step", ""),
        "dpo_step tiny": ("dpo_step", ""),
        "dpo_step fp32": ("dpo_step", "--shape smol135"),
        "grpo_step tiny, KL": ("grpo_step", "--beta 0.04"),
        "grpo_step fp32": ("grpo_step", "--shape smol135"),
        "grpo_step fp32, KL": ("grpo_step", "--shape smol135 --beta 0.04"),
        "grpo_step bf16": ("grpo_step", "--shape smol135 --dtype bf16"),
        "startup": ("startup", "--shape smol135"),
    },
}
# Peers that count steps instead of repetitions: they exclude the first two steps and the last one.
STEPPED = {"grpo_step": 3, "dpo_step": 3}
# Runs a peer with CPU time as its clock, so that other processes cannot disturb it.
CPU_CLOCK = """
import resource, runpy, sys, time
def clock():
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
time.perf_counter = clock
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
try:
    import common
    common._busy_s = lambda: (0.0, 0.0)
except ImportError:
    pass
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# Target speedup over the peer, on processors with AVX512.
GOALS = {
    "lora_step fp32": 2.0, "lora_step fp32 mixed, peer padded": 3.5, "lora_step fp32 mixed, peer padding-free": 2.1,
    "sft b32 s32": 1.8, "sft b32 s32 mixed": 2.5, "ppo b32 s32": 2.0,
    "logprob with gradient": 1.8, "logprob with gradient, peer TRL": 4.0,
    "grpo_step tiny": 3.0, "grpo_step fp32": 4.0, "dpo_step tiny": 2.5, "dpo_step fp32": 2.5, "startup": 8.0,
    "lora_step bf16": 1.5, "lora_step bf16 mixed, peer padding-free": 2.0,
    "generate smol135 fp32 b1": 2.5, "generate smol135 fp32 b8": 3.0, "generate smol135 fp32 b32": 2.0,
    "generate smol135 bf16 b1": 3.0, "generate smol135 bf16 b8": 3.5, "generate smol135 bf16 b32": 2.8,
    "generate tiny fp32 b1": 8.0, "generate tiny fp32 b8": 3.5, "generate tiny fp32 b32": 2.5,
}
HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("python")
    p.add_argument("folder")
    p.add_argument("--cases", choices=SETS, default="classifier")
    p.add_argument("--only", nargs="+", metavar="CASE", help="run only these cases")
    p.add_argument("--tuned", help="also measure the peer with this library preloaded")
    p.add_argument("--cpu", action="store_true", help="count CPU time instead of wall time")
    p.add_argument("--reps", type=int, default=3, help="undisturbed repetitions per round")
    p.add_argument("--rounds", type=int, default=2, help="rounds of each side")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--ours", default=os.path.join(HERE, "..", "bin", "rltrain"))
    p.add_argument("--out", help="default: docs/results/bench_CASES.json")
    a = p.parse_args()
    for case in a.only or []:
        if case not in SETS[a.cases]:
            p.error(f"unknown case {case!r}; choose from " + ", ".join(SETS[a.cases]))
    a.out = a.out or os.path.join(HERE, "..", "docs", "results", f"bench_{a.cases}.json")
    return a


def measure(command, preload=None):
    env = dict(os.environ, LD_PRELOAD=preload) if preload else None
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout)
    if "steps_measured" in result:
        result["reps"] = result.pop("steps_measured")
    if "split" in result:  # a peer's startup: the process had no memory before
        result["peak_rss_mb"] = result["step_extra_mb"] = result["split"]["rss_mb"]
    return result


def count_cpu(ours):
    """Replace wall time by CPU time."""
    if "tokens_per_s" in ours:
        ours["tokens_per_s"] *= ours["best_s"] / ours["cpu_s"]
    ours["best_s"] = ours["cpu_s"]


def merge(turns):
    """Combine rounds: the best time, the median of medians, the sum of repetitions, the least memory.
    Not every peer prints all of them."""
    best = dict(min(turns, key=lambda t: t["best_s"]))
    combined = {"median_s": statistics.median, "reps": sum, "clean_reps": sum, "peak_rss_mb": min, "step_extra_mb": min}
    for key, combine in combined.items():
        if key in best:
            best[key] = combine([t[key] for t in turns])
    best["load1"] = max(t["load1"] for t in turns)
    return best


def run(case, a):
    name, flags, peer_flags, our_flags = (*SETS[a.cases][case], "", "")[:4]
    flags = shlex.split(flags) + ["--threads", str(a.threads)]
    reps = ["--reps", str(a.reps)]
    peer_reps = ["--steps", str(a.reps + STEPPED[name])] if name in STEPPED else reps
    clock = ["-c", CPU_CLOCK] if a.cpu else []
    peer = [a.python] + clock + [os.path.join(os.path.abspath(a.folder), name + ".py")] + flags + peer_reps + shlex.split(peer_flags)
    sides = {"ours": ([a.ours, "bench", name, "--json"] + flags + reps + shlex.split(our_flags), None),
             "peer": (peer, None)}
    if a.tuned:
        sides["peer_tuned"] = (peer, os.path.abspath(a.tuned))
    turns = {name: [] for name in sides}
    for _ in range(a.rounds):
        for name, (command, preload) in sides.items():
            turns[name].append(measure(command, preload))
            if a.cpu and name == "ours":
                count_cpu(turns[name][-1])
    result = {name: merge(t) for name, t in turns.items()}
    ours = result["ours"]
    for name in list(sides)[1:]:
        result["ratio_to_" + name] = round(result[name]["best_s"] / ours["best_s"], 3)
        if result[name].get("real_tokens") != ours.get("real_tokens"):  # sampled lengths differ
            result["tokens_ratio_to_" + name] = round(ours["tokens_per_s"] / result[name]["tokens_per_s"], 3)
    if case in GOALS:
        result["goal"] = GOALS[case]
    result["disturbed"] = not a.cpu and any(side.get("clean_reps", a.reps) < a.reps for side in result.values() if isinstance(side, dict))
    memory = "step_extra_mb" if "step_extra_mb" in result["peer"] else "peak_rss_mb"
    result["memory_of_peer"] = round(ours[memory] / result["peer"][memory], 3)
    return result


def main():
    a = arguments()
    results = {}
    if os.path.exists(a.out):
        with open(a.out) as f:
            results = json.load(f)
    os.makedirs(os.path.dirname(os.path.abspath(a.out)), exist_ok=True)
    for case in a.only or SETS[a.cases]:
        if case not in results or results[case]["disturbed"]:
            results[case] = run(case, a)
            with open(a.out + ".part", "w") as f:
                json.dump(results, f, indent=1)
                f.write("\n")
            os.replace(a.out + ".part", a.out)
        r = results[case]
        line = ", ".join(f"{k} {r[k]['best_s']:.3f} s" for k in ("ours", "peer", "peer_tuned") if k in r)
        note = " (disturbed by other processes: no figure to quote)" if r["disturbed"] else ""
        print(f"{case}: {line}; {r['ratio_to_peer']}x the peer's speed with {r['memory_of_peer']}x its memory{note}")


if __name__ == "__main__":
    main()
