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
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

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
    words = {f"w{i}" if i > 3 else f"[{i}]": i for i in range(config.vocab_size)}  # no word begins with a special token
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[3]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="[1] $A [2]", pair="[1] $A [2] $B [2]", special_tokens=[("[1]", 1), ("[2]", 2)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, cls_token="[1]", sep_token="[2]", pad_token="[0]", unk_token="[3]").save_pretrained(folder)
    uses = config.num_hidden_layers if family == "albert" else 1  # of layers that are one
    return sum(p.numel() * uses for n, p in model.base_model.named_parameters() if p.dim() > 1 and "embed" not in n)


def write_rows(path, count):
    path.write_text("".join(json.dumps({"text": " ".join(f"w{4 + (i * 31 + j * 7) % 4000}" for j in range(LENGTH - 2)),
                                        "label": LABELS[i % len(LABELS)]}) + "\n" for i in range(count)))


def own_speed(folder, threads):
    """Return the seconds of a training step, and of classifying a batch, by rltrain."""
    rows, one, out = folder / "rows.jsonl", folder / "one.jsonl", folder / "out.jsonl"
    write_rows(rows, ROWS * BATCHES)
    write_rows(one, 1)
    with tempfile.TemporaryDirectory() as output:
        rltrain("--mode", "supervised", "--model", folder, "--dataset", rows, "--output-dir", output,
                "--lora-r", RANK, "--dtype", "fp32", "--batch-size", ROWS, "--max-steps", STEPS, "--logging-steps", 1, "--threads", threads)
        lines = map(json.loads, next(pathlib.Path(output).glob("*/logs/metrics.jsonl")).read_text().splitlines())
        step = min(line["time/step"] for line in lines if "time/step" in line)
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
    steps, passes = [], []
    with torch.no_grad():
        for _ in range(STEPS):
            start = time.perf_counter()
            model(input_ids=ids)
            passes.append(time.perf_counter() - start)
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=16, target_modules=FAMILIES[family][1], task_type="SEQ_CLS")).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    for _ in range(STEPS):
        start = time.perf_counter()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.append(time.perf_counter() - start)
    return min(steps), min(passes)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", choices=FAMILIES, help="this model_type alone")
    options.add_argument("--threads", type=int, default=os.cpu_count())
    options.add_argument("--rounds", type=int, default=2)
    o = options.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        bert = pathlib.Path(temporary) / "bert"
        bert_weights = write_model("bert", bert)
        for family in [o.only] if o.only else FAMILIES:
            if family in found or family == "bert":
                continue
            folder, rounds = pathlib.Path(temporary) / family, []
            weights = write_model(family, folder)
            for i in range(o.rounds):
                sides = [folder, bert] if i % 2 == 0 else [bert, folder]
                taken = {side: own_speed(side, o.threads) for side in sides}
                rounds.append({"own": taken[folder], "beside": taken[bert], "transformers": peer_speed(folder, family, o.threads)})
            found[family] = {"weights": weights, "beside_weights": bert_weights, "threads": o.threads, "rounds": rounds}
            print(family, rounds, flush=True)
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")


main()
