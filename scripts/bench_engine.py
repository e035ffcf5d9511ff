"""Measure what `--engine` adds to a GRPO step: `rltrain serve --train` on this machine against training in the process.

Runs both in turn and prints the ratio of each pair's time per step, for the models tiny and smollm2. Both get the same threads; the
client of the service needs next to none. Run it on a quiet machine: python3 scripts/bench_engine.py --pairs 5

A model that has its pairs in the results file is not measured again; `go run ./scripts/experiment tables` makes the table. With
--memory the memory of the client goes to engine_memory.json instead, in MB; other work on the machine does not change it.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import threading
import time

from bench_pairs import processor

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("RLTRAIN", str(ROOT / "bin" / "rltrain"))
WARM = 2  # steps that are not counted


def train(output, model, prompts, steps, *args):
    """Start a run of GRPO."""
    command = [BINARY, "--task", "prompts", "--dataset", prompts, "--mode", "rl_only", "--algorithm", "grpo", "--model", model, "--tuning", "lora", "--lora-r", "16",
               "--lora-target-modules", "all-linear", "--reward", "expr:length", "--prompts-per-step", "4", "--samples-per-prompt", "8", "--max-new-tokens", "48",
               "--num-steps", str(steps), "--kl-coef", "0.01", "--eval-samples", "1", "--eval-every", str(steps), "--fresh-samples", "0", "--logging-steps", "1",
               "--save-steps", str(steps), "--allow-no-signal", "--output-dir", output, *args]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)


def step_time(output, *args):
    """The mean time of the steps after the first ones, in seconds."""
    if train(output, *args).wait() != 0:
        raise RuntimeError("the run failed")
    rows = map(json.loads, (output / "prompts_rl" / "logs" / "metrics.jsonl").read_text().splitlines())
    times = [row["time/step"] for row in rows if "time/step" in row][WARM:]
    return sum(times) / len(times)


def serve(model, folder, threads):
    command = [BINARY, "serve", "--model", model, "--name", "bench", "--train", folder, "--port", "0", "--dtype", "fp32", "--threads", threads]
    server = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if found := re.search(r" at (http://\S+)", line):
            threading.Thread(target=server.stderr.read, daemon=True).start()
            return server, found[1]
    raise RuntimeError("the server did not start")


def pages(pid):
    """The memory of a process in MB: all, with its share of what others use too, and its own; and parts of it."""
    kinds = {"Rss": 0, "Pss": 0, "Private": 0, "libtorch's files": 0, "heap of C and C++": 0}
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if found := re.match(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)", line):
            name = pathlib.Path(found[1]).name
        elif found := re.match(r"(?:(Rss|Pss)|(Private)_(?:Clean|Dirty)): +(\d+)", line):
            kind, size = found[1] or found[2], int(found[3]) * 1024 / 1e6
            kinds[kind] += size
            if kind == "Rss" and name.startswith("libtorch"):
                kinds["libtorch's files"] += size
            if kind == "Private" and name == "[heap]":
                kinds["heap of C and C++"] += size
    return kinds


def memory(client):
    """The largest and the middle values of pages of a run."""
    seen = []
    while client.poll() is None:
        try:
            seen.append(pages(client.pid))
        except OSError:
            break
        time.sleep(0.2)
    if client.wait() != 0:
        raise RuntimeError("the run failed")
    return {kind: {"middle": round(statistics.median(x[kind] for x in seen)), "most": round(max(x[kind] for x in seen))} for kind in seen[0]}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--threads", type=int, default=os.cpu_count())
    options.add_argument("--models", default="tiny,smollm2")
    options.add_argument("--memory", action="store_true", help="measure memory in place of time")
    options.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "results" / "engine.json")
    o = options.parse_args()
    out = o.out.with_name("engine_memory.json") if o.memory else o.out
    results = json.loads(out.read_text()) if out.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": f"What is {i} plus {j}?"}) + "\n" for i in range(20) for j in range(10)))
        for model in o.models.split(","):
            name = model if o.memory else f"{model}, {o.threads} thread{'s' if o.threads > 1 else ''}"
            if name in results:
                continue
            if model == "tiny":  # a run makes the folder of random weights
                step_time(folder / "make", "tiny", prompts, WARM + 1, "--seed", "1", "--threads", o.threads)
                model = next((folder / "make").glob("tiny-*"))
            server, address = serve(model, folder / "runs", o.threads)
            try:
                if o.memory:
                    results[name] = memory(train(folder / f"{name}-client", model, prompts, o.steps, "--engine", "tinker:" + address, "--threads", 1))
                    print(name, results[name], flush=True)
                    out.write_text(json.dumps(results, indent=1) + "\n")
                    continue
                pairs = []
                for i in range(o.pairs):
                    pair = {}
                    for where in ("here", "there")[:: 1 if i % 2 == 0 else -1]:
                        args = ("--engine", "tinker:" + address, "--threads", 1) if where == "there" else ("--dtype", "fp32", "--threads", o.threads)
                        pair[where] = step_time(folder / f"{model.name if isinstance(model, pathlib.Path) else model}-{where}-{i}", model, prompts, o.steps, *args)
                    pairs.append((pair["here"], pair["there"]))
                    print(f"{name}: {pair['here']:.3f} s a step here, {pair['there']:.3f} s with --engine, ratio {pair['there'] / pair['here']:.3f}", flush=True)
                results[name] = {"processor": processor(), "threads": o.threads, "pairs": pairs}
                out.write_text(json.dumps(results, indent=1) + "\n")
            finally:
                server.terminate()
                server.wait()


main()
