"""Checks exported GGUF files of the model smollm2, in every type, with the package gguf, and with llama.cpp where the package
llama_cpp is installed: greedy responses to 20 prompts and the perplexity of a text. Run by `make compat`.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from checks import ROOT, attempt, check, results, rltrain
from gguf import GGUFReader, dequantize

TYPES = {"f32": 0.0, "f16": 5e-4, "bf16": 4e-3, "q8_0": 0.01, "q4_0": 0.13, "q4_1": 0.11, "q4_k": 0.1}  # relative error of a matrix
QUESTIONS = [
    "What is the capital of France?", "Name three colours.", "What is 2 + 2?", "Write a sentence about the sea.", "Who wrote Hamlet?",
    "Translate 'good morning' into Spanish.", "What do bees make?", "How many days has a week?", "What is the opposite of hot?",
    "Give me a word that rhymes with cat.", "What is water made of?", "Name a planet.", "What is the largest ocean?", "Why is the sky blue?",
    "What is a noun?", "Count from one to five.", "What language is spoken in Brazil?", "What does a dog say?", "Name a fruit.", "What is ice?",
]
NEW = 40


def tensors(path):
    return {t.name: np.array(dequantize(t.data, t.tensor_type)).reshape(-1) for t in GGUFReader(path).tensors}


def perplexity_here(model, tokens, scratch):
    rows = scratch / "rows.jsonl"
    rows.write_text(json.dumps({"prompt_ids": tokens[:1], "completion_ids": tokens[1:]}) + "\n")
    scored = json.loads(rltrain("score", "--model", model, "--input", rows, "--dtype", "fp32"))
    return float(np.exp(-np.mean(scored["logprobs"])))


def perplexity_there(llm, tokens):
    llm.reset()
    llm.eval(tokens)
    logits = np.array(llm.scores[:len(tokens)], dtype=np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    chosen = logits[np.arange(len(tokens) - 1), tokens[1:]] - np.log(np.exp(logits[:-1]).sum(axis=1))
    return float(np.exp(-chosen.mean()))


def check_llama(files, scratch):
    try:
        import llama_cpp
    except ImportError:
        print("llama_cpp is not installed: llama.cpp is not asked")
        return
    rows = scratch / "questions.jsonl"
    rows.write_text("".join(json.dumps({"messages": [{"role": "user", "content": q}]}) + "\n" for q in QUESTIONS))
    out = rltrain("generate", "--model", files["f32"], "--input", rows, "--temperature", 0, "--max-new-tokens", NEW)
    ours = [json.loads(line)["completion"] for line in out.splitlines()]
    llm = llama_cpp.Llama(str(files["f32"]), n_ctx=2048, logits_all=True, verbose=False)
    same = 0
    for question, want in zip(QUESTIONS, ours):
        answer = llm.create_chat_completion([{"role": "user", "content": question}], temperature=0, max_tokens=NEW, repeat_penalty=1.0)
        got = answer["choices"][0]["message"]["content"]
        same += got == want
        if got != want:
            print(f"     {question}\n       llama.cpp: {got!r}\n       rltrain:   {want!r}")
    check("greedy responses of llama.cpp", same == len(QUESTIONS), f"{same} of {len(QUESTIONS)} equal")
    text = (ROOT / "docs" / "architecture.md").read_text() + (ROOT / "LICENSE").read_text()
    tokens = llm.tokenize(text.encode(), add_bos=False)[:1024]
    for kind in ("f32", "q8_0", "q4_k"):
        llm = llama_cpp.Llama(str(files[kind]), n_ctx=2048, logits_all=True, verbose=False)
        there, here = perplexity_there(llm, tokens), perplexity_here(files[kind], tokens, scratch)
        check(f"perplexity {kind}", abs(there / here - 1) < 0.005, f"{here:.4f} here, {there:.4f} in llama.cpp, {len(tokens)} tokens")


def main():
    source = subprocess.run([os.environ.get("RLTRAIN", ROOT / "bin" / "rltrain"), "models", "pull", "smollm2"],
                            check=True, capture_output=True, text=True).stdout.strip()
    original = tensors(source)
    with tempfile.TemporaryDirectory() as name:
        scratch, files = pathlib.Path(name), {}
        for kind, bound in TYPES.items():
            with attempt(f"export {kind}"):
                files[kind] = scratch / f"smollm2-{kind}.gguf"
                rltrain("export", "--model", "smollm2", "--quantize", kind, "--output", files[kind])
                got = tensors(files[kind])
                check(f"names {kind}", got.keys() == original.keys())
                error = max(np.sqrt(np.mean((got[n] - w) ** 2) / np.mean(w ** 2)) for n, w in original.items())
                check(f"values {kind}", error <= bound, f"relative error {error:.2g}")
        with attempt("llama.cpp"):
            check_llama(files, scratch)
    print(f"{results['passed']} checks passed, {results['failed']} failed")
    sys.exit(results["failed"] > 0)


main()
