#!/usr/bin/env python3
"""Compare `rltrain bench --device cuda` with transformers, PEFT and TRL on the same GPU.

usage: run.py [--ours bin/rltrain] [--device cuda] [--seconds 240] [--rounds 1] [--only CASE ...] [--out docs/results/gpu.json]

The peers are the scripts in this folder, run by the same Python as this one. Models have random weights, and both sides do
the same work. The sides alternate for --rounds rounds, and the best round counts. Results are written after each process, so
an interrupted call loses nothing; the next call continues with the missing cases. After --seconds nothing new starts, and
running processes are killed. --dry makes the same calls with a tiny model, in seconds, for machines without a GPU.
"""
import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time

# Target speedup over the peer, and maximum fraction of the peer's memory, by prefix of the case's name.
GOALS = {"generate smol135 b256": 3, "generate qwen1.5b b256": 3, "generate": 5, "lora_step": 2, "grpo_step": 4}
MEMORY_GOALS = {"lora_step": 0.5}
HERE = os.path.dirname(os.path.abspath(__file__))
OURS, PEER, STATIC = "ours", "peer", "peer_static"
# The figure that decides which round was best.
FIGURE = {"generate": "decode_step_ms", "lora_step": "best_s", "grpo_step": "best_s", "device": "best_s"}


class Part:
    """Cases that one process of a peer measures: one for each --batch in batches."""

    def __init__(self, case, shape, flags, batches, ours="", peer="", sides=(OURS, PEER), limit=60):
        self.case, self.shape, self.flags, self.batches, self.sides, self.limit = case, shape, flags, batches, sides, limit
        self.extra = {OURS: ours, PEER: peer, STATIC: peer}

    def name(self, batch):
        return f"{self.case} {self.shape} b{batch}"

    def commands(self, side, a):
        """Yield each command to run, with the names of the cases that it measures."""
        common = ["--device", a.device] + shlex.split(self.flags) + shlex.split(self.extra[side])
        if self.shape:
            common += ["--shape", self.shape, "--dtype", "bf16"]
        if side == OURS:
            for batch in self.batches:
                size = ["--batch", str(batch)] if batch else []
                name = self.name(batch) if batch else self.case
                yield [a.ours, "bench", self.case, "--json", "--threads", str(a.threads), "--reps", "3", *common, *size], [name]
            return
        sizes = ["--batch", *map(str, self.batches)]
        yield ([sys.executable, os.path.join(HERE, self.case + ".py"), "--reps", "2", *common, *sizes],
               [self.name(batch) for batch in self.batches])


def plan(dry):
    """Return all parts, the most important ones first."""
    if dry:
        return [Part("generate", "tiny", "--sample --prompt 8 --new 4", [1, 2]),
                Part("lora_step", "tiny", "--seq 64", [4], "--layout mixed", "--layout padded"),
                Part("grpo_step", "tiny", "--group 4 --prompt 8 --new 8", [8])]
    generate = "--sample --prompt 64 --new 64"
    lora = ("--layout mixed", "--layout padded")
    grpo = "--group 8 --prompt 64 --new 64"
    static = dict(peer="--cache static", sides=[STATIC], limit=90)
    return [Part("device", "", "", [0], sides=[OURS]),
            Part("generate", "smol135", generate, [1, 32, 256]),
            Part("lora_step", "smol135", "--seq 512", [32], *lora),
            Part("generate", "qwen1.5b", generate, [1, 32, 256]),
            Part("lora_step", "qwen1.5b", "--seq 512", [16], *lora),
            Part("grpo_step", "smol135", grpo, [64]),
            Part("grpo_step", "qwen1.5b", grpo, [64]),
            Part("generate", "qwen1.5b", generate, [1], **static),
            Part("generate", "smol135", generate, [1], **static)]


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ours", default=os.path.join(HERE, "..", "..", "bin", "rltrain"))
    p.add_argument("--device", default="cuda")
    p.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of rltrain")
    p.add_argument("--seconds", type=float, default=240, help="time limit in seconds")
    p.add_argument("--rounds", type=int, default=1, help="rounds of each side")
    p.add_argument("--only", nargs="+", metavar="CASE", default=[""], help="run only cases whose names begin with one of these")
    p.add_argument("--dry", action="store_true", help="use a tiny model, without a GPU")
    p.add_argument("--out", default=os.path.join(HERE, "..", "..", "docs", "results", "gpu.json"))
    return p.parse_args()


def run(command, limit):
    """Run a command for at most limit seconds. Return its lines of JSON, and the error or None."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, text=True, start_new_session=True)
        error = None
        try:
            if process.wait(timeout=limit):
                error = f"exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # including its child processes
            process.wait()
            error = f"over {limit:.0f} s"
        out.seek(0)
        err.seek(0)
        lines = [json.loads(line) for line in out if line.startswith("{") and line.endswith("}\n")]
        if error:
            error = f"{error}: {err.read()[-2000:].strip()}"
        return lines, error


def graphics_card(device):
    if device == "cpu":
        return {"name": "CPU"}
    fields = ["name", "driver_version", "memory.total"]
    command = ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader"]
    first = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[0]
    return dict(zip(fields, (value.strip() for value in first.split(","))))


def better(case, new, old):
    return old is None or "error" in old or new[FIGURE[case]] < old[FIGURE[case]]


def note(results, part, side, names, lines, error, command):
    """Record what a process printed. If a peer has several ways to do a step, the fastest one counts."""
    shown = " ".join(os.path.basename(word) for word in command)
    for name in names:
        entry = results["cases"].setdefault(name, {})
        found = [line for line in lines if len(names) == 1 or line["batch"] == int(name.rpartition("b")[2])]
        for line in found:
            if "way" in line:
                ways = entry.setdefault(side + "_ways", {})
                if better(part.case, line, ways.get(line["way"])):
                    ways[line["way"]] = line
            if better(part.case, line, entry.get(side)):
                entry[side] = {**line, "command": shown}
        if not found:
            entry.setdefault(side, {"error": error or "it printed nothing", "command": shown})
        compare(part.case, entry)
        for key, goals in (("goal", GOALS), ("memory_goal", MEMORY_GOALS)):
            if goal := next((goals[start] for start in goals if name.startswith(start)), None):
                entry[key] = goal


def compare(case, entry):
    ours = entry.get(OURS, {})
    for side in (PEER, STATIC):
        theirs = entry.get(side, {})
        if FIGURE[case] in ours and FIGURE[case] in theirs:
            entry["ratio_to_" + side] = round(theirs[FIGURE[case]] / ours[FIGURE[case]], 3)
    theirs = entry.get(PEER, {})
    if "gpu" in ours and "gpu" in theirs:
        entry["memory_of_peer"] = round(ours["gpu"]["extra_mb"] / theirs["gpu"]["extra_mb"], 3)
    if "step_bytes" in ours:  # both sides must read the same bytes
        for side in (PEER, STATIC):
            if "decode_step_ms" in entry.get(side, {}):
                entry[side]["gb_s"] = ours["step_bytes"] / entry[side]["decode_step_ms"] / 1e6
    if "step_flops" in ours and "best_s" in theirs:
        theirs["tflop_s"] = ours["step_flops"] / theirs["best_s"] / 1e12


def save(results, path):
    with open(path + ".part", "w") as f:
        json.dump(results, f, indent=1)
        f.write("\n")
    os.replace(path + ".part", path)


def load(a):
    """Load the results of earlier calls on the same kind of GPU, without failed ones."""
    fresh = {"gpu": graphics_card(a.device), "cases": {}}
    if not os.path.exists(a.out):
        return fresh
    with open(a.out) as f:
        earlier = json.load(f)
    if earlier["gpu"] != fresh["gpu"]:
        raise SystemExit(f"{a.out} has results of {earlier['gpu']}, but this GPU is {fresh['gpu']}; choose another --out")
    for entry in earlier["cases"].values():
        for side in (OURS, PEER, STATIC):
            if "error" in entry.get(side, {}):
                del entry[side]
    return earlier


def measure(part, side, round_, results, a, until):
    for command, names in part.commands(side, a):
        done = all(side in results["cases"].get(name, {}) for name in names)
        if not any(name.startswith(tuple(a.only)) for name in names) or done and round_ == 0:
            continue
        left = until - time.monotonic()
        if left < 3:
            print(f"skipped {names} of {side}: out of time", flush=True)
            continue
        began = time.monotonic()
        lines, error = run(command, min(part.limit, left))
        note(results, part, side, names, lines, error, command)
        save(results, a.out)
        for name in names:
            figures = results["cases"][name][side]
            said = figures.get("error") or f"{FIGURE[part.case]} {figures[FIGURE[part.case]]:.4g}"
            print(f"{time.monotonic() - began:5.1f} s  {name}, {side}: {said}", flush=True)


def main():
    a = arguments()
    until = time.monotonic() + a.seconds
    os.makedirs(os.path.dirname(os.path.abspath(a.out)), exist_ok=True)
    results = load(a)
    for part in plan(a.dry):
        for round_ in range(a.rounds):
            for side in part.sides:
                measure(part, side, round_, results, a, until)
    for name, entry in results["cases"].items():
        ratios = ", ".join(f"{key} {entry[key]}" for key in ("ratio_to_peer", "ratio_to_peer_static", "memory_of_peer") if key in entry)
        print(f"{name}: {ratios or 'no ratio'}")


if __name__ == "__main__":
    main()
