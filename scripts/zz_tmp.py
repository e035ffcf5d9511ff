"""Check GGUF exports of the model smollm2 in every type with the package gguf and with llama.cpp: greedy responses to 20
prompts, the perplexity of a text, and an adapter used with its base model. Run by `make compat`.
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

try:
    import xllamacpp
except ImportError:
    xllamacpp = None

TYPES = {"f32": 0.0, "q8_0": 0.01}
QUESTIONS = [
    "What is the capital of France?", "Name three colours.", "What is 2 + 2?", "Write a sentence about the sea.", "Who wrote Hamlet?",
    "Translate 'good morning' into Spanish.", "What do bees make?", "How many days has a week?", "What is the opposite of hot?",
    "Give me a word that rhymes with cat.", "What is water made of?", "Name a planet.", "What is the largest ocean?", "Why is the sky blue?",
    "What is a noun?", "Count from one to five.", "What language is spoken in Brazil?", "What does a dog say?", "Name a fruit.", "What is ice?",
]
NEW = 40
TOKENS = {"f32": 16, "q8_0": 24}  # length of the text for comparing perplexities


def tensors(path):
    return {t.name: np.array(dequantize(t.data, t.tensor_type)).reshape(-1) for t in GGUFReader(path).tensors}


def logprobs_here(model, tokens, scratch):
    rows = scratch / "rows.jsonl"
    rows.write_text(json.dumps({"prompt_ids": tokens[:1], "completion_ids": tokens[1:]}) + "\n")
    return np.array(json.loads(rltrain("score", "--model", model, "--input", rows, "--dtype", "fp32"))["logprobs"])


class Judge:
    """llama.cpp, serving one file."""

    def __init__(self, path, adapter=None):
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel, params.warmup, params.verbosity = str(path), 4096, 1, False, -1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(os.environ.get("THREADS", 2))
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.use_jinja = True
        if adapter:
            loaded = xllamacpp.CommonAdapterLoraInfo()
            loaded.path, loaded.scale = str(adapter), 1.0
            params.lora_adapters = [loaded]
        self.server = xllamacpp.Server(params)

    def greedy(self, messages):
        answer = self.server.handle_chat_completions({"messages": messages, "temperature": 0, "max_tokens": NEW})
        return answer["choices"][0]["message"]["content"]

    def logprobs(self, tokens):
        return np.array([self.logprob(tokens[:i], tokens[i]) for i in range(1, len(tokens))])

    def logprob(self, prompt, token):
        for most in (200, 1 << 20):  # the whole vocabulary takes a hundred times as long
            answer = self.server.handle_completions({"prompt": prompt, "n_predict": 1, "n_probs": most, "temperature": 0, "cache_prompt": True})
            for one in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
                if one["id"] == token:
                    return one["logprob"]
        raise ValueError(f"no log-probability of token {token}")


def conversation(question):
    return [{"role": "user", "content": question}]


def compare_greedy(name, model, judge, scratch):
    rows = scratch / "questions.jsonl"
    rows.write_text("".join(json.dumps({"messages": conversation(q)}) + "\n" for q in QUESTIONS))
    out = rltrain("generate", "--model", model, "--input", rows, "--temperature", 0, "--max-new-tokens", NEW, "--dtype", "fp32")
    ours = [json.loads(line)["completion"] for line in out.splitlines()]
    theirs = [judge.greedy(conversation(q)) for q in QUESTIONS]
    for question, here, there in zip(QUESTIONS, ours, theirs):
        if here != there:
            print(f"     {question}\n       rltrain:   {here!r}\n       llama.cpp: {there!r}")
    same = sum(a == b for a, b in zip(ours, theirs))
    check(f"greedy responses of llama.cpp, {name}", same == len(QUESTIONS), f"{same} of {len(QUESTIONS)} equal")


def check_llama(files, scratch):
    if xllamacpp is None:
        print("skipped llama.cpp: the package xllamacpp is not installed")
        return
    judge = Judge(files["f32"])

    text = "".join((ROOT / "docs" / name).read_text() for name in ("deploy.md", "rewards.md"))[:9000]
    rows = scratch / "text.jsonl"
    rows.write_text(json.dumps({"prompt": "", "prompt_ids": [0], "completion": text}) + "\n")
    tokens = json.loads(rltrain("score", "--model", files["f32"], "--input", rows))["completion_ids"]
    # With Q8_0 weights llama.cpp also rounds activations, to 8 bits in blocks of 32. A token's log-probability changes by 0.1
    # either way, so only a long text says more than 0.5 % about the weights.
    for kind, most in TOKENS.items():
        here, there = logprobs_here(files[kind], tokens[:most], scratch), Judge(files[kind]).logprobs(tokens[:most])
        apart = here - there
        change, error = np.expm1(apart.mean()), 1.96 * apart.std(ddof=1) / len(apart) ** 0.5
        check(f"perplexity {kind}", abs(change) < 0.005 + error and error < 0.005,
              f"{np.exp(-here.mean()):.4f} here, {100 * change:+.2f} % [±{100 * error:.2f}] in llama.cpp, {len(apart)} tokens")



def check_perplexity(files, scratch):
    """Compare the perplexities of Q8_0 and F32, on a longer text than the comparison with llama.cpp."""
    rows = scratch / "long.jsonl"
    rows.write_text(json.dumps({"prompt_ids": [0], "completion": (ROOT / "docs" / "deploy.md").read_text()[:4000]}) + "\n")
    ppl = {}
    for kind in ("f32", "q8_0"):
        scored = json.loads(rltrain("score", "--model", files[kind], "--input", rows, "--dtype", "fp32"))
        ppl[kind] = float(np.exp(-np.mean(scored["logprobs"])))
    check("perplexity of q8_0 and f32", abs(ppl["q8_0"] / ppl["f32"] - 1) < 0.005, f"{ppl['q8_0']:.4f} and {ppl['f32']:.4f}")


def check_adapter(base, scratch):
    """Compare an adapter merged by rltrain with the same adapter applied by llama.cpp."""
    rows = scratch / "rows.jsonl"
    rows.write_text(json.dumps({"messages": [*conversation("What is your favourite colour?"), {"role": "assistant", "content": "Purple, of course!"}]}) + "\n")
    rows.write_text(rows.read_text() * 8)
    rltrain("--task", "chat", "--model", base, "--dataset", rows, "--output-dir", scratch / "run", "--epochs", 3, "--batch-size", 4,
            "--learning-rate", 2e-3, "--lora-target-modules", "q_proj,k_proj,v_proj,o_proj,up_proj")
    trained = scratch / "run" / "chat_supervised"
    rltrain("export", "--model", trained, "--adapter-only", "--output", scratch / "lora.gguf")
    compare_greedy("adapter as GGUF LoRA", trained, Judge(base, scratch / "lora.gguf"), scratch)


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
        with attempt("perplexity"):
            check_perplexity(files, scratch)
        with attempt("llama.cpp"):
            check_llama(files, scratch)
    print(f"{results['passed']} checks passed, {results['failed']} failed")
    sys.exit(results["failed"] > 0)


main()
