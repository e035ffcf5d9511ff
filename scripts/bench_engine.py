"""Measure what `--engine` adds to a GRPO step: `rltrain serve --train` on this machine against training in the process.

Runs both in turn and prints the ratio of each pair's time per step, for the models tiny and smollm2. Both get the same threads; the
client of the service needs next to none. Run it on a quiet machine: python3 scripts/bench_engine.py --pairs 5

A model that has its pairs in the results file is not measured again; `go run ./scripts/experiment tables` makes the table.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading

from bench_pairs import processor

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("RLTRAIN", str(ROOT / "bin" / "rltrain"))
WARM = 2  # steps that are not counted


def step_time(output, model, prompts, steps, *args):
    """The mean time of the steps after the first ones, in seconds."""
    command = [BINARY, "--task", "prompts", "--dataset", prompts, "--mode", "rl_only", "--algorithm", "grpo", "--model", model, "--tuning", "lora", "--lora-r", "16",
               "--lora-target-modules", "all-linear", "--reward", "expr:length", "--prompts-per-step", "4", "--samples-per-prompt", "8", "--max-new-tokens", "48",
               "--num-steps", str(steps), "--kl-coef", "0.01", "--eval-samples", "1", "--eval-every", str(steps), "--fresh-samples", "0", "--logging-steps", "1",
               "--save-steps", str(steps), "--allow-no-signal", "--output-dir", output, *args]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
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


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--threads", type=int, default=os.cpu_count())
    options.add_argument("--models", default="tiny,smollm2")
    options.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "results" / "engine.json")
    o = options.parse_args()
    results = json.loads(o.out.read_text()) if o.out.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": f"What is {i} plus {j}?"}) + "\n" for i in range(20) for j in range(10)))
        for model in o.models.split(","):
            name = f"{model}, {o.threads} thread{'s' if o.threads > 1 else ''}"
            if name in results:
                continue
            if model == "tiny":  # a run makes the folder of random weights
                step_time(folder / "make", "tiny", prompts, WARM + 1, "--seed", "1", "--threads", o.threads)
                model = next((folder / "make").glob("tiny-*"))
            server, address = serve(model, folder / "runs", o.threads)
            try:
                pairs = []
                for i in range(o.pairs):
                    pair = {}
                    for where in ("here", "there")[:: 1 if i % 2 == 0 else -1]:
                        args = ("--engine", "tinker:" + address, "--threads", 1) if where == "there" else ("--dtype", "fp32", "--threads", o.threads)
                        pair[where] = step_time(folder / f"{model.name if isinstance(model, pathlib.Path) else model}-{where}-{i}", model, prompts, o.steps, *args)
                    pairs.append((pair["here"], pair["there"]))
                    print(f"{name}: {pair['here']:.3f} s a step here, {pair['there']:.3f} s with --engine, ratio {pair['there'] / pair['here']:.3f}", flush=True)
                results[name] = {"processor": processor(), "threads": o.threads, "pairs": pairs}
                o.out.write_text(json.dumps(results, indent=1) + "\n")
            finally:
                server.terminate()
                server.wait()


main()
