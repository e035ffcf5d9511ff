#!/usr/bin/env python3
"""Prints the losses of steps of LoRA on bf16 weights and on bitsandbytes' NF4 weights, with transformers and PEFT, on the CPU.

usage: qlora_peer.py MODEL_FOLDER [--steps N]

Needs torch, transformers, peft and bitsandbytes. The rows are paragraphs of the documentation, 4 a step, as in quantized.py.
"""
import argparse
import glob
import json
import os

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "*.md")


def paragraphs():
    found = []
    for path in sorted(glob.glob(DOCS)):
        with open(path) as f:
            found += [p for p in f.read().split("\n\n") if len(p) > 400 and not p.startswith(("|", "`"))]
    return found


def losses(folder, quantize, steps):
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    options = {"dtype": torch.bfloat16}
    if quantize:
        options["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder, **options), adapter)
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.data = p.data.float()
    optimizer = torch.optim.AdamW(trained, lr=2e-4)
    rows = [tokenizer(p)["input_ids"][:127] + [tokenizer.eos_token_id] for p in paragraphs()]
    found = []
    for step in range(min(steps, len(rows) // 4)):
        batch = rows[4 * step:4 * step + 4]
        count, total = sum(len(row) - 1 for row in batch), 0.0
        for row in batch:
            ids = torch.tensor([row])
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(input_ids=ids).logits.float()
            loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum") / count
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        found.append(total)
    return found


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("folder")
    a.add_argument("--steps", type=int, default=20)
    a = a.parse_args()
    print(json.dumps({name: losses(a.folder, name == "nf4", a.steps) for name in ("bf16", "nf4")}))


main()
