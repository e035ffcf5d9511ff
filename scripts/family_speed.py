"""Helpers for families.py and encoder_speed.py: models of single-word tokens, and their speed beside another's."""
import json
import pathlib
import tempfile
import time

import torch
from checks import rltrain
from peft import get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def word(i):
    """Return the text of a token; no special one is the beginning of another."""
    return f"<{i}>"


def write_tokenizer(folder, size, post_processor=None, **special):
    """Write a tokenizer of single words, which has an id for each row of the embedding; `special` are ids by their role."""
    tokenizer = Tokenizer(models.WordLevel({word(i): i for i in range(size)}, unk_token=word(0)))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{role: word(i) for role, i in special.items()}).save_pretrained(folder)


def own_steps(output, tokens, *options):
    """Train by rltrain into a folder; return the seconds of the fastest step. Each must have so many tokens."""
    rltrain("--output-dir", output, "--mode", "supervised", "--dtype", "fp32", "--logging-steps", 1, *options)
    lines = map(json.loads, next(pathlib.Path(output).glob("*/logs/metrics.jsonl")).read_text().splitlines())
    steps = [line for line in lines if "time/step" in line]
    assert steps[0]["num_tokens"] == tokens, f"{steps[0]['num_tokens']} tokens a step instead of {tokens}"
    return min(line["time/step"] for line in steps)


def peer_steps(model, lora, count, **batch):
    """Train a model of transformers with PEFT; return the seconds of the fastest step."""
    model = get_peft_model(model, lora).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    steps = []
    for _ in range(count):
        start = time.perf_counter()
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.append(time.perf_counter() - start)
    return min(steps)


def measure(results, families, beside, write, own_speed, peer_speed, threads, rounds):
    """Measure families and the one `beside` them in turns, and save each in the file of results unless it is there.

    write(family, folder) returns how many entries of matrices a token meets; own_speed(folder, threads) and peer_speed(folder,
    family, threads) return the seconds of a training step and of a pass.
    """
    found = json.loads(results.read_text()) if results.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        base = pathlib.Path(temporary) / beside
        base_weights = write(beside, base)
        for family in families:
            if family in found or family == beside:
                continue
            folder, pairs = pathlib.Path(temporary) / family, []
            weights = write(family, folder)
            for i in range(rounds):
                sides = [folder, base] if i % 2 == 0 else [base, folder]
                taken = {side: own_speed(side, threads) for side in sides}
                pairs.append({"own": taken[folder], "beside": taken[base], "transformers": peer_speed(folder, family, threads)})
            found[family] = {"weights": weights, "beside_weights": base_weights, "threads": threads, "rounds": pairs}
            print(family, pairs, flush=True)
            results.write_text(json.dumps(found, indent=1) + "\n")
