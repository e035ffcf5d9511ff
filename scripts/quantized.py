#!/usr/bin/env python3
"""Measures quantised weights: speed beside llama.cpp, and QLoRA beside LoRA on bf16 weights.

usage: quantized.py PEER_PYTHON GGUF_FOLDER [--cpu] [--rounds N] [--out FILE]

PEER_PYTHON has llama_cpp. GGUF_FOLDER has smollm2-TYPE.gguf for f32, bf16, q8_0, q4_0 and q4_1, as `rltrain export --model
smollm2 --format gguf --quantize TYPE` writes them. Speed: tokens/s of one completion, and of a prompt of 512 tokens, with two
threads; rltrain runs a random model of the same shape. Both take turns, and the best turn counts. nf4 and int8, which llama.cpp
lacks, are compared with rltrain's bf16 alone. With --cpu: CPU time of one thread, for a machine with other work. QLoRA: the
losses of 20 steps of SFT on smollm2, and the peak memory: all of it, and what belongs to the process alone, without the pages
of libraries and programs. Each row is saved when it is complete, and not measured again.
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
FLAGS = {t: ("--quantize", t) for t in ("nf4", "q8_0", "q4_0", "q4_1", "int8")}
FLAGS.update({"bf16": ("--dtype", "bf16"), "f32": ("--dtype", "fp32")})
PROMPT, NEW, DECODE_PROMPT, AFTER_PROMPT = 512, 48, 64, 2


def peer(path, cpu):
    """Prints the seconds of a prompt and of a decode step, each the best of several."""
    clock, threads = (time.process_time, 1) if cpu else (time.perf_counter, 2)
    import ctypes
    import llama_cpp as l
    quiet = l.llama_log_callback(lambda level, text, user: None)
    l.llama_log_set(quiet, ctypes.c_void_p(0))
    l.llama_backend_init()
    model = l.llama_model_load_from_file(path.encode(), l.llama_model_default_params())
    p = l.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_threads, p.n_threads_batch = 1024, PROMPT, PROMPT, threads, threads
    context = l.llama_init_from_model(model, p)

    def run(tokens):
        array = (l.llama_token * len(tokens))(*tokens)
        start = clock()
        if l.llama_decode(context, l.llama_batch_get_one(array, len(tokens))) != 0:
            sys.exit("llama_decode failed")
        l.llama_get_logits(context)
        return clock() - start

    def clear():
        l.llama_memory_clear(l.llama_get_memory(context), True)

    prompts, steps = [], []
    for _ in range(4):
        clear()
        prompts.append(run([100 + i * 7 % 40000 for i in range(PROMPT)]))
        clear()
        run(list(range(100, 100 + DECODE_PROMPT)))
        steps.append(sum(run([200 + i]) for i in range(NEW)) / NEW)
    print(json.dumps({"prompt_s": min(prompts), "step_s": min(steps)}))


def ours(program, flags, cpu):
    def bench(prompt, new):
        command = [program, "bench", "generate", "--shape", "smol135", *flags, "--batch", "1", "--prompt", str(prompt),
                   "--new", str(new), "--reps", "2", "--threads", "1" if cpu else "2", "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    decode, prompt = bench(DECODE_PROMPT, NEW), bench(PROMPT, AFTER_PROMPT)
    seconds = {"prompt_s": prompt["first_token_s"], "step_s": decode["decode_step_ms"] / 1e3}
    if cpu:  # the bench counts the CPU time of everything, so a step is a difference
        short = bench(DECODE_PROMPT, 2)
        seconds["step_s"] = (decode["cpu_s"] - short["cpu_s"]) / (NEW - 2)
        seconds["prompt_s"] = prompt["cpu_s"] - (AFTER_PROMPT - 1) * seconds["step_s"]
    return {**seconds, "step_bytes": decode["step_bytes"], "kernels": decode["kernels"], "load": decode["load1"]}


def better(best, new):
    """Of each time the least; what else there is from the newest."""
    return {k: min(v, best.get(k, v)) if k.endswith("_s") else v for k, v in new.items()}


def peak_own(command):
    """Runs a command and returns the peak of its memory that no file backs, sampled every few milliseconds."""
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                with open(f"/proc/{process.pid}/status") as f:
                    peak = max([peak] + [1024 * int(line.split()[1]) for line in f if line.startswith("RssAnon")])
            except OSError:
                pass
            time.sleep(0.005)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peak


def qlora(program, quantize):
    """Losses of 20 steps of SFT on paragraphs of the documentation, and the peak memory with and without activations."""
    with tempfile.TemporaryDirectory() as folder:
        def train(name, texts, *options):
            data, out = os.path.join(folder, name + ".jsonl"), os.path.join(folder, name)
            with open(data, "w") as f:
                for text in texts:
                    f.write(json.dumps({"text": text}) + "\n")
            command = [program, "--task", "chat", "--mode", "supervised", "--model", "smollm2", "--dataset", data, "--quantize", quantize,
                       "--output-dir", out, "--threads", "2", "--logging-steps", "1", *options]
            if quantize == "none":
                command += ["--dtype", "bf16"]
            own = peak_own(command)
            with open(os.path.join(out, "chat_supervised", "run.json")) as f:
                peak = json.load(f)["peak_memory_bytes"]
            with open(os.path.join(out, "chat_supervised", "logs", "metrics.jsonl")) as f:
                return peak, own, [row["loss"] for row in map(json.loads, f) if "loss" in row]
        paragraphs = []
        for path in sorted(glob.glob(os.path.join(HERE, "..", "docs", "*.md"))):
            with open(path) as f:
                paragraphs += [p for p in f.read().split("\n\n") if len(p) > 400 and not p.startswith(("|", "`"))]
        peak, own, losses = train("long", paragraphs, "--max-steps", "20", "--batch-size", "4", "--max-length", "128")
        least, least_own, _ = train("short", ["One two three four."] * 4, "--max-steps", "2", "--batch-size", "1")
    return {"losses": losses, "peak_bytes": peak, "peak_without_activations_bytes": least,
            "peak_own_bytes": own, "peak_own_without_activations_bytes": least_own}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("python")
    a.add_argument("folder")
    a.add_argument("--cpu", action="store_true")
    a.add_argument("--rounds", type=int, default=2)
    a.add_argument("--ours", default=os.path.join(HERE, "..", "bin", "rltrain"))
    a.add_argument("--out", default=os.path.join(HERE, "..", "docs", "results", "quantized.json"))
    a = a.parse_args()
    results = {}
    if os.path.exists(a.out):
        with open(a.out) as f:
            results = json.load(f)

    def save(part, name, row):
        results.setdefault(part, {})[name] = row
        print(name, json.dumps(row), flush=True)
        with open(a.out + ".new", "w") as f:
            json.dump(results, f, indent=1, sort_keys=True)
            f.write("\n")
        os.replace(a.out + ".new", a.out)

    part = "cpu" if a.cpu else "speed"
    for t in FLAGS:
        if t in results.get(part, {}):
            continue
        path, row = os.path.join(a.folder, f"smollm2-{t}.gguf"), {"ours": {}, "bf16": {}, "peer": {}}
        for _ in range(a.rounds):
            row["ours"] = better(row["ours"], ours(a.ours, FLAGS[t], a.cpu))
            if t not in ("f32", "bf16"):
                row["bf16"] = better(row["bf16"], ours(a.ours, FLAGS["bf16"], a.cpu))  # beside it, as other work on the machine varies
            if os.path.exists(path):
                run = subprocess.run([a.python, __file__, "--peer", path, *["--cpu"] * a.cpu], check=True, capture_output=True, text=True)
                row["peer"] = better(row["peer"], json.loads(run.stdout))
        save(part, t, row)
    for quantize in ("none", "nf4"):
        if quantize not in results.get("qlora", {}):
            save("qlora", quantize, qlora(a.ours, quantize))


if sys.argv[1:2] == ["--peer"]:
    peer(sys.argv[2], "--cpu" in sys.argv)
else:
    main()
