"""Measure encoders of all families, each beside a BERT, in turns: a training step of a classifier with LoRA on queries and values,
and the classification of a batch, with rltrain and with transformers + PEFT. Written to docs/results/encoders.json, which a
repeated call completes; `go run ./scripts/experiment tables` makes the table. Run it on a quiet machine: 10 minutes.
"""
import argparse
import json
import os
import pathlib
import tempfile
import time

import torch
from checks import ROOT, rltrain
from family_speed import measure, own_steps, peer_steps, word, write_tokenizer
from peft import LoraConfig
from tokenizers import processors
from transformers import AutoConfig, AutoModelForSequenceClassification

RESULTS = ROOT / "docs" / "results" / "encoders.json"
LABELS = ["a", "b", "c"]
ROWS, LENGTH, STEPS, BATCHES, RANK = 16, 64, 4, 16, 8
SHAPE = dict(vocab_size=4096, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536, max_position_embeddings=130,
             pad_token_id=0, bos_token_id=1, cls_token_id=1, eos_token_id=2, sep_token_id=2, id2label=dict(enumerate(LABELS)), label2id={name: i for i, name in enumerate(LABELS)})
GATED = dict(intermediate_size=1024)  # three matrices instead of two
QUERY_VALUE, PROJECTIONS = ["query", "value"], ["q_proj", "v_proj"]
FAMILIES = {  # fields of the configuration, targets of LoRA
    "bert": ({}, QUERY_VALUE), "roberta": ({}, QUERY_VALUE), "xlm-roberta": ({}, QUERY_VALUE), "electra": (dict(embedding_size=384), QUERY_VALUE),
    "albert": (dict(embedding_size=128), QUERY_VALUE), "mpnet": (dict(pad_token_id=1, bos_token_id=0), ["attn.q", "attn.v"]),
    "distilbert": (dict(dim=384, n_layers=6, n_heads=6, hidden_dim=1536), ["q_lin", "v_lin"]),
    "deberta-v2": (dict(relative_attention=True, position_buckets=32, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type="p2c|c2p",
                        position_biased_input=False, type_vocab_size=0), ["query_proj", "value_proj"]),
    "modernbert": (GATED, ["Wqkv"]), "eurobert": (dict(mask_token_id=3, **GATED), PROJECTIONS), "nomic_bert": (GATED, PROJECTIONS),
}


def write_model(family, folder):
    torch.manual_seed(7)
    config = AutoConfig.for_model(family, **{**SHAPE, **FAMILIES[family][0]})
    model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    ends = processors.TemplateProcessing(single=f"{word(1)} $A {word(2)}", pair=f"{word(1)} $A {word(2)} $B {word(2)}",
                                         special_tokens=[(word(1), 1), (word(2), 2)])
    write_tokenizer(folder, config.vocab_size, ends, cls_token=1, sep_token=2, pad_token=0)
    uses = config.num_hidden_layers if family == "albert" else 1  # of layers that are one
    return sum(p.numel() * uses for n, p in model.base_model.named_parameters() if p.dim() > 1 and "embed" not in n)


def write_rows(path, count):
    path.write_text("".join(json.dumps({"text": " ".join(word(4 + (i * 31 + j * 7) % 4000) for j in range(LENGTH - 2)),
                                        "label": LABELS[i % len(LABELS)]}) + "\n" for i in range(count)))


def own_speed(folder, threads):
    """Return the seconds of a training step, and of classifying a batch, by rltrain."""
    rows, one, out = folder / "rows.jsonl", folder / "one.jsonl", folder / "out.jsonl"
    write_rows(rows, ROWS * BATCHES)
    write_rows(one, 1)
    with tempfile.TemporaryDirectory() as output:
        step = own_steps(output, ROWS * LENGTH, "--model", folder, "--dataset", rows, "--lora-r", RANK, "--batch-size", ROWS,
                         "--max-steps", STEPS, "--threads", threads)
        model = next(pathlib.Path(output).glob("*_supervised"))
        best = {one: float("inf"), rows: float("inf")}
        for path in (one, rows) * 2:
            start = time.perf_counter()
            rltrain("predict", "--model", model, "--input", path, "--output", out, "--threads", threads)
            best[path] = min(best[path], time.perf_counter() - start)
            out.unlink()
    return step, (best[rows] - best[one]) / BATCHES


def peer_speed(folder, family, threads):
    """Return the same of transformers and PEFT."""
    torch.set_num_threads(threads)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    ids, labels = torch.arange(4, 4 + ROWS * LENGTH).view(ROWS, LENGTH) % 4000, torch.arange(ROWS) % len(LABELS)
    passes = []
    with torch.no_grad():
        for _ in range(STEPS):
            start = time.perf_counter()
            model(input_ids=ids)
            passes.append(time.perf_counter() - start)
    lora = LoraConfig(r=RANK, lora_alpha=16, target_modules=FAMILIES[family][1], task_type="SEQ_CLS")
    return peer_steps(model, lora, STEPS, input_ids=ids, labels=labels), min(passes)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", choices=FAMILIES, help="this model_type alone")
    options.add_argument("--threads", type=int, default=os.cpu_count())
    options.add_argument("--rounds", type=int, default=2)
    o = options.parse_args()
    measure(RESULTS, [o.only] if o.only else FAMILIES, "bert", write_model, own_speed, peer_speed, o.threads, o.rounds)


main()
