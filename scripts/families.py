"""Compare language models of all families with transformers: part of `make compat`. With --speed, measure them instead.

Without --speed: the smallest published model of each family, with random weights: as published if it is small, else with its
widths, heads and experts, but two layers and at most 32768 rows of the embedding, in bfloat16. The log-probabilities of texts and 20 greedy tokens must equal those of transformers.

With --speed: models of about SmolLM2's widths, each beside a Llama, in turns: an SFT step with LoRA, and greedy decoding, with
rltrain and with transformers + PEFT. Written to docs/results/families.json, which a repeated call completes; `go run
./scripts/experiment tables` makes the table. Run it on a quiet machine.
"""
import argparse
import json
import math
import os
import pathlib
import tempfile
import time

import torch
from checks import LIMIT, ROOT, attempt, check, results, rltrain
from family_speed import measure, own_steps, peer_steps, word, write_tokenizer
from peft import LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM

PUBLISHED = ROOT / "torch" / "transformers" / "testdata" / "published.json"
# Families of which that file has no model. Without fields, the defaults of transformers' configuration are those of a published one.
GRANITE = dict(embedding_multiplier=12.0, attention_multiplier=0.015625, residual_multiplier=0.22, logits_scaling=6.0, tie_word_embeddings=True)
OTHERS = {
    "cohere2": {}, "exaone4": {}, "glm4": {}, "ministral": {}, "ministral3": {}, "olmo3": {}, "qwen2_moe": {},
    "gemma4_text": dict(hidden_size=1536, intermediate_size=6144, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=1,
                        num_kv_shared_layers=2, use_double_wide_mlp=True, final_logit_softcapping=30.0,
                        layer_types=["sliding_attention", "full_attention"] * 2),
    "gemma4_mixed": dict(model_type="gemma4_text", hidden_size=2816, intermediate_size=2112, num_hidden_layers=2, num_attention_heads=16,
                         num_key_value_heads=8, num_global_key_value_heads=2, attention_k_eq_v=True, hidden_size_per_layer_input=0,
                         final_logit_softcapping=30.0, sliding_window=1024, enable_moe_block=True, num_experts=16, top_k_experts=8,
                         moe_intermediate_size=704, layer_types=["sliding_attention", "full_attention"]),
    "gemma3n_text": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2,
                         num_kv_shared_layers=2, activation_sparsity_pattern=[0.95, 0.95, 0.0, 0.0],
                         layer_types=["sliding_attention", "full_attention"] * 2),
    "lfm2_moe": dict(num_hidden_layers=24, layer_types=["conv", "full_attention"] * 12, num_dense_layers=1),
    "granitemoe": dict(vocab_size=49155, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, num_key_value_heads=8,
                       intermediate_size=512, num_local_experts=32, num_experts_per_tok=8, **GRANITE),
    "granitemoehybrid": dict(vocab_size=100352, hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=4,
                             shared_intermediate_size=2048, num_local_experts=0, layer_types=["attention"] * 28,
                             position_embedding_type="rope", **GRANITE),
}
SMALL = 200e6  # parameters of a model that keeps all its layers
LAYERS = 2  # of the others, or one of each kind
ROWS_OF_EMBEDDING = 32768  # of the others, at most
GREEDY = 20
GAP = 1e-3  # between the two best logits; what comes after a smaller one may differ

SPEED = ROOT / "docs" / "results" / "families.json"
WIDE = dict(vocab_size=4096, hidden_size=576, num_hidden_layers=8, num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536,
            max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=True)
# Eight experts, of which two see a token: as much arithmetic as the dense model's.
EXPERTS = dict(intermediate_size=768, num_experts=8, num_experts_per_tok=2)
MOE = dict(moe_intermediate_size=768, **EXPERTS)
DELTA = dict(linear_num_key_heads=9, linear_num_value_heads=9, linear_key_head_dim=64, linear_value_head_dim=64)
FAMILIES = {
    "llama": {}, "qwen3": dict(head_dim=64), "smollm3": {}, "granite": {}, "olmo2": {}, "olmo3": dict(sliding_window=512),
    "ministral": dict(head_dim=64, sliding_window=512), "exaone4": dict(sliding_window=512), "cohere2": dict(sliding_window=512),
    "glm4": dict(head_dim=64), "starcoder2": dict(intermediate_size=2304), "stablelm": {},
    "gemma3_text": dict(head_dim=64, sliding_window=512),
    "gemma4_text": dict(head_dim=64, global_head_dim=64, sliding_window=512, layer_types=["sliding_attention", "full_attention"] * 4,
                        hidden_size_per_layer_input=64, vocab_size_per_layer_input=4096),
    "mixtral": EXPERTS, "qwen3_moe": dict(head_dim=64, **MOE),
    "olmoe": EXPERTS, "granitemoe": dict(intermediate_size=768, num_local_experts=8, num_experts_per_tok=2),
    "gpt_oss": dict(intermediate_size=768, num_local_experts=8, num_experts_per_tok=2, head_dim=64, sliding_window=512,
                    rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "lfm2": dict(layer_types=["conv", "conv", "full_attention", "conv"] * 2, block_auto_adjust_ff_dim=False),
    "lfm2_moe": dict(layer_types=["conv", "conv", "full_attention", "conv"] * 2, num_dense_layers=0, **MOE),
    "qwen3_5_text": dict(head_dim=64, **DELTA), "qwen3_5_moe_text": dict(head_dim=64, shared_expert_intermediate_size=768, **MOE, **DELTA),
}
ATTENTION = ["q_proj", "k_proj", "v_proj"]  # whose names are alike
ROWS, LENGTH, PROMPT, NEW, RANK, STEPS = 8, 256, 32, 256, 16, 4


def few_layers(config):
    """Keep the first layers, or the first of each kind, and what lists them, and all that is published about a layer."""
    if getattr(config, "num_kv_shared_layers", 0):  # whose last layers need the first
        return config
    types = getattr(config, "layer_types", None) or [None] * config.num_hidden_layers
    kept = sorted({*range(LAYERS)} if len(set(types)) == 1 else {types.index(kind) for kind in types})
    for name, value in vars(config).items():
        if isinstance(value, list) and len(value) == config.num_hidden_layers:
            setattr(config, name, [value[i] for i in kept])
    config.num_hidden_layers = len(kept)
    config.vocab_size = min(config.vocab_size, ROWS_OF_EMBEDDING)
    return config


def write_model(config, folder, seed=7):
    torch.manual_seed(seed)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 1, 2, 0
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:  # biases of 0 and scales of 1 would hide a missing term
                p.add_(0.1 * torch.randn(p.shape))
            if config.model_type in ("gemma3n_text", "gemma4_text") and name.endswith(("q_norm.weight", "k_norm.weight")):
                p.mul_(0.2)  # scores have no other scale: of heads of length √512 they would multiply rounding
    published = torch.bfloat16 if sum(p.numel() for p in model.parameters()) > SMALL else torch.float32
    for dtype in dict.fromkeys((published, torch.float32)):
        for p in model.parameters():
            p.data = p.data.to(dtype)
        if dtype == published:
            model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_tokenizer(folder, config.vocab_size, bos_token=1, eos_token=2, pad_token=0)
    return model


@torch.no_grad()
def wanted(model, rows):
    scores = []
    for ids in rows:
        logits = model(torch.tensor([ids]), use_cache=False).logits[0]
        scores.append(logits.double().log_softmax(-1)[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0])
    ids = list(rows[0])
    for _ in range(GREEDY):
        best = model(torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
        if best.values[0] - best.values[1] < GAP or best.indices[0] == 2:
            break
        ids.append(best.indices[0].item())
    return scores, ids[len(rows[0]):]


def check_published(name, config, folder):
    model = write_model(config, folder)
    draw = torch.Generator().manual_seed(5)
    rows = [torch.randint(3, config.vocab_size, (n,), generator=draw).tolist() for n in (9, 70, 300)]
    scores, greedy = wanted(model, rows)
    count = sum(p.numel() for p in model.parameters())
    del model
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt_ids": ids[:1], "completion_ids": ids[1:]}) + "\n" for ids in rows))
    out = rltrain("score", "--input", path, "--model", folder, "--dtype", "fp32")
    got = [torch.tensor(json.loads(line)["logprobs"], dtype=torch.float64) for line in out.splitlines()]
    differ = max((a - b).abs().max().item() for a, b in zip(scores, got, strict=True))
    check(f"{name}, {config.num_hidden_layers} layers, {count / 1e6:.0f} M", differ <= LIMIT, f"log-probabilities differ by {differ:.1e}")
    path.write_text(json.dumps({"prompt_ids": rows[0]}) + "\n")
    out = rltrain("generate", "--input", path, "--model", folder, "--dtype", "fp32", "--temperature", 0, "--max-new-tokens", GREEDY)
    ids = json.loads(out)["completion_ids"][:len(greedy)]
    check(f"{name}: greedy tokens", ids == greedy, f"{len(greedy)} tokens" if ids == greedy else f"{ids} instead of {greedy}")


def smallest():
    """Return the smallest published configuration of each family."""
    shapes = {}
    for name, entry in json.loads(PUBLISHED.read_text()).items():
        family = entry["config"]["model_type"]
        if family not in shapes or entry["parameters"] < shapes[family][1]["parameters"]:
            shapes[family] = name, entry
    return shapes | {family: ("published widths", {"parameters": math.inf, "config": fields}) for family, fields in OTHERS.items()}


def check_all(only):
    for family, (name, entry) in smallest().items():
        if only and only != family:
            continue
        text = entry["config"].get("text_config", entry["config"])
        fields = {k: v for k, v in text.items() if k not in ("model_type", "architectures", "auto_map", "torch_dtype", "dtype", "quantization_config")}
        with tempfile.TemporaryDirectory() as temporary, attempt(family):
            config = AutoConfig.for_model(text.get("model_type", family), **fields)
            check_published(f"{family}, {name}", config if entry["parameters"] < SMALL else few_layers(config), pathlib.Path(temporary) / "model")


def active(model):
    """Return the number of matrix entries that a token meets, but for the embedding."""
    config = model.config
    share = config.num_experts_per_tok / EXPERTS["num_experts"] if hasattr(config, "num_experts_per_tok") else 1
    return sum(p.numel() * (share if ".experts." in n else 1) for n, p in model.named_parameters() if p.dim() > 1 and "embed" not in n)


def own_speed(folder, threads):
    """Return the seconds of an SFT step and of a decoded token of all rows, by rltrain."""
    prompt, completion = (" ".join(word(3 + i * 7 % 4000) for i in range(n)) for n in (8, LENGTH - 9))  # and the end token
    data = folder / "talk.jsonl"
    data.write_text((json.dumps({"prompt": prompt, "completion": " " + completion}) + "\n") * ROWS * STEPS)
    with tempfile.TemporaryDirectory() as output:
        step = own_steps(output, ROWS * LENGTH, "--task", "chat", "--model", folder, "--dataset", data, "--tuning", "lora", "--lora-r", RANK,
                         "--lora-target-modules", ",".join(ATTENTION), "--batch-size", ROWS, "--max-steps", STEPS, "--threads", threads)
    prompts = folder / "prompts.jsonl"
    prompts.write_text((json.dumps({"prompt_ids": list(range(5, 5 + PROMPT))}) + "\n") * ROWS)
    taken = {1: math.inf, NEW: math.inf}  # the best of several: starting takes longer than some tokens
    for tokens in (1, NEW) * 3:
        start = time.perf_counter()
        rltrain("generate", "--input", prompts, "--output", folder / "out.jsonl", "--model", folder, "--dtype", "fp32", "--temperature", 0,
                "--max-new-tokens", tokens, "--batch-size", ROWS, "--threads", threads)
        taken[tokens] = min(taken[tokens], time.perf_counter() - start)
        lengths = {len(json.loads(line)["completion_ids"]) for line in (folder / "out.jsonl").read_text().splitlines()}
        assert lengths == {tokens}, f"completions of {lengths} tokens instead of {tokens}"
        (folder / "out.jsonl").unlink()
    return step, (taken[NEW] - taken[1]) / (NEW - 1)


def peer_speed(folder, _, threads):
    """Return the same of transformers and PEFT."""
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt, times = torch.arange(5, 5 + PROMPT).repeat(ROWS, 1), []
    for tokens in (1, NEW):
        start = time.perf_counter()
        model.generate(prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
        times.append(time.perf_counter() - start)
    ids = torch.arange(3, 3 + LENGTH).repeat(ROWS, 1)
    lora = LoraConfig(r=RANK, lora_alpha=32, target_modules=ATTENTION)
    return peer_steps(model, lora, STEPS, input_ids=ids, labels=ids, use_cache=False), (times[1] - times[0]) / (NEW - 1)


def write_family(family, folder):
    return active(write_model(AutoConfig.for_model(family, **{**WIDE, **FAMILIES[family]}), folder))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--speed", action="store_true")
    options.add_argument("--only", help="this model_type alone")
    options.add_argument("--threads", type=int, default=os.cpu_count())
    options.add_argument("--rounds", type=int, default=3)
    o = options.parse_args()
    if o.speed:
        return measure(SPEED, [o.only] if o.only else FAMILIES, "llama", write_family, own_speed, peer_speed, o.threads, o.rounds)
    check_all(o.only)
    print(f"{results['passed']} checks passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


raise SystemExit(main())
