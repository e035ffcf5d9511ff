"""Compare a GGUF file (default: the model smollm2) with transformers. Run by `make compat`.

Passes cases to the Go tests of the small committed GGUF files: the logits at three positions of a text, and the tokens of
300 texts.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = 300
ODD = ["", " ", "   ", "\n\n\n", "\t", "Größe naïve", "東京 の cat 는 무엇", "🧪🔬 what?", "x" * 300, "don't WE'LL can't", "12 345 6789.01",
       "<|im_start|>user\nhi<|im_end|>\n", "<s>a</s>", "zero\u200bwidth", "a\u0301", "def f(x):\n\treturn x**2\n", "\r\n", "▁▁a", "#!/bin/sh -e"]


def texts():
    """Return unusual texts, and excerpts from this repository."""
    rng = random.Random(7)
    files = sorted(ROOT.glob("docs/*.md")) + sorted(ROOT.glob("csrc/**/*.h")) + sorted(ROOT.glob("scripts/*.py"))
    found = list(ODD)
    while len(found) < TEXTS:
        text = rng.choice(files).read_text()
        at = rng.randrange(len(text))
        found.append(text[at:at + rng.randrange(1, 200)])
    return found


def smollm2():
    binary = os.environ.get("RLTRAIN", ROOT / "bin" / "rltrain")
    path = subprocess.run([binary, "models", "pull", "smollm2"], check=True, capture_output=True, text=True).stdout.strip()
    return pathlib.Path(path)


def main():
    path = (pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else smollm2()).resolve()
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    if b"smollm" in path.read_bytes()[:1 << 22]:
        # transformers 5.23 ignores that tokenizer.ggml.pre is smollm and splits like GPT-2; the model's tokenizer.json
        # separates digits.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    ids = tokenizer("The capital of France is Paris. 12 + 30 = 42, and so on; every sentence is the start of another.")["input_ids"]
    positions = [0, len(ids) // 2, len(ids) - 1]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, positions]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / path.name).symlink_to(path)
        (folder / (path.stem + ".json")).write_text(json.dumps({
            "ids": ids, "positions": positions, "logits": [[float(x) for x in row] for row in logits],
            "texts": [{"text": t, "ids": tokenizer(t)["input_ids"]} for t in texts()],
        }))
        environment = subprocess.run(["scripts/setup/env.sh"], check=True, capture_output=True, text=True, cwd=ROOT).stdout
        command = f"{environment}\ngo test -count=1 -v -run GGUF ./torch/transformers"
        subprocess.run(["bash", "-c", command], check=True, cwd=ROOT, env={**os.environ, "RLTRAIN_GGUF_CASES": str(folder)})


main()
