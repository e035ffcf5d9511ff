#!/usr/bin/env python3
"""Measures the speed of each type of weights beside llama.cpp: tokens/s of one completion, and of a prompt of 512 tokens.

usage: quantized.py PEER_PYTHON GGUF_FOLDER [--rounds N] [--out FILE]

PEER_PYTHON has llama_cpp. GGUF_FOLDER has smollm2-TYPE.gguf for f32, bf16, q8_0, q4_0 and q4_1, as `rltrain export --model
smollm2 --format gguf --quantize TYPE` writes them. rltrain runs a random model of the same shape. Both take turns, with two
threads; the best turn counts. nf4 and int8, which llama.cpp lacks, are compared with rltrain's bf16 alone. Types that the
results file has are not measured again.
"""
import argparse
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
FLAGS = {"f32": ("--dtype", "fp32"), "bf16": ("--dtype", "bf16")}
FLAGS.update({t: ("--quantize", t) for t in ("q8_0", "q4_0", "q4_1", "int8", "nf4")})
PROMPT, NEW, DECODE_PROMPT = 512, 48, 64


def peer(path):
    """Prints the seconds of a prompt and of a decode step, each the best of several."""
    import ctypes
    import llama_cpp as l
    quiet = l.llama_log_callback(lambda level, text, user: None)
    l.llama_log_set(quiet, ctypes.c_void_p(0))
    l.llama_backend_init()
    model = l.llama_model_load_from_file(path.encode(), l.llama_model_default_params())
    p = l.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_threads, p.n_threads_batch = 1024, PROMPT, PROMPT, 2, 2
    context = l.llama_init_from_model(model, p)

    def run(tokens):
        array = (l.llama_token * len(tokens))(*tokens)
        start = time.perf_counter()
        if l.llama_decode(context, l.llama_batch_get_one(array, len(tokens))) != 0:
            sys.exit("llama_decode failed")
        l.llama_get_logits(context)
        return time.perf_counter() - start

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


def ours(program, flags):
    def bench(prompt, new):
        command = [program, "bench", "generate", "--shape", "smol135", *flags, "--batch", "1", "--prompt", str(prompt),
                   "--new", str(new), "--reps", "1", "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    decode = bench(DECODE_PROMPT, NEW)
    return {"prompt_s": bench(PROMPT, 2)["first_token_s"], "step_s": decode["decode_step_ms"] / 1e3, "step_cpu_s": decode["cpu_s"] / NEW,
            "step_bytes": decode["step_bytes"], "kernels": decode["kernels"], "load": decode["load1"]}


def better(best, new):
    """Of each time the least; what else there is from the newest."""
    return {k: min(v, best.get(k, v)) if k.endswith("_s") else v for k, v in new.items()}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("python")
    a.add_argument("folder")
    a.add_argument("--rounds", type=int, default=2)
    a.add_argument("--ours", default=os.path.join(HERE, "..", "bin", "rltrain"))
    a.add_argument("--out", default=os.path.join(HERE, "..", "docs", "results", "quantized.json"))
    a = a.parse_args()
    results = {}
    if os.path.exists(a.out):
        with open(a.out) as f:
            results = json.load(f)
    speed = results.setdefault("speed", {})
    missing = [t for t in FLAGS if t not in speed]
    found = {t: {"ours": {}, "peer": {}} for t in missing}
    for _ in range(a.rounds):
        for t in missing:
            path = os.path.join(a.folder, f"smollm2-{t}.gguf")
            found[t]["ours"] = better(found[t]["ours"], ours(a.ours, FLAGS[t]))
            if os.path.exists(path):
                run = subprocess.run([a.python, __file__, "--peer", path], check=True, capture_output=True, text=True)
                found[t]["peer"] = better(found[t]["peer"], json.loads(run.stdout))
            print(t, json.dumps(found[t]), flush=True)
    speed.update(found)
    with open(a.out, "w") as f:
        json.dump(results, f, indent=1, sort_keys=True)
        f.write("\n")


if sys.argv[1:2] == ["--peer"]:
    peer(sys.argv[2])
else:
    main()
