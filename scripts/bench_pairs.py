#!/usr/bin/env python3
"""Compare the speed of two builds of rltrain: each runs every case in turn, in alternating order.

    python3 scripts/bench_pairs.py OLD NEW [--rounds 6] [--kernels avx2] [--threads 2] [--only CASE ...] [--out docs/results/bench_pairs.json]

OLD and NEW are programs, each beside its library. Prints the speed of NEW as a multiple of OLD's: the geometric mean over the rounds with
a 95 % interval (Student's t of the logarithms). The results file keeps each seconds figure; the next call continues with missing cases.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess

CASES = {
    "lora_step smol135 fp32": "lora_step --shape smol135 --batch 4 --seq 128",
    "lora_step smol135 bf16": "lora_step --shape smol135 --dtype bf16 --batch 4 --seq 128",
    "lora_step tiny": "lora_step --shape tiny",
    "generate smol135 fp32 b1": "generate --shape smol135 --batch 1 --new 32",
    "generate smol135 fp32 b8": "generate --shape smol135 --batch 8 --new 32",
    "generate smol135 bf16 b8": "generate --shape smol135 --dtype bf16 --batch 8 --new 32",
    "generate tiny": "generate --shape tiny",
    "grpo_step tiny": "grpo_step --shape tiny",
    "grpo_step smol135": "grpo_step --shape smol135 --batch 16 --group 8",
    "dpo_step tiny": "dpo_step --shape tiny",
    "logprob": "logprob --tokens 512 --grad",
    "classifier_step minilm": "classifier_step --shape minilm --batch 32",
    "classifier_step minilm mixed": "classifier_step --shape minilm --batch 32 --seq 64 --mixed",
    "classifier_step minilm ppo": "classifier_step --shape minilm --mode ppo",
    "classifier_step minilm one text": "classifier_step --shape minilm --mode infer --batch 1",
}
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}  # by degrees of freedom


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))


def seconds(program, case, options):
    env = dict(os.environ, **({"RLTRAIN_KERNELS": options.kernels} if options.kernels else {}))
    env.pop("RLTRAIN_LIB", None)
    command = [program, "bench", *CASES[case].split(), "--reps", "3", "--threads", str(options.threads), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)["best_s"]


def summary(pairs):
    logs = [math.log(old / new) for old, new in pairs]
    mean = statistics.mean(logs)
    half = T95.get(len(logs) - 1, 2.0) * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return [round(math.exp(x), 3) if x < 700 else x for x in (mean, mean - half, mean + half)]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("old")
    p.add_argument("new")
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--kernels", default="", help="kernel set of both, as RLTRAIN_KERNELS has it")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--only", nargs="+", default=list(CASES))
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("docs/results/bench_pairs.json"))
    options = p.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {"processor": processor(), "threads": options.threads, "cases": {}}
    for case in options.only:
        name = f"{case}, {options.kernels}" if options.kernels else case
        if name in results["cases"]:
            continue
        pairs = []
        for round_ in range(options.rounds):
            sides = [options.old, options.new]
            taken = {program: seconds(program, case, options) for program in (sides if round_ % 2 == 0 else sides[::-1])}
            pairs.append([taken[options.old], taken[options.new]])
        results["cases"][name] = {"options": CASES[case], "seconds": pairs, "speed": summary(pairs)}
        print(f"{name:44} {results['cases'][name]['speed']}", flush=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
