"""Exchange of language model adapters between rltrain and PEFT, and merged models in transformers: part of compat.py."""
import json
import random
import shutil

import torch
from checks import LIMIT, attempt, check, loads_in_peft, rltrain
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 99  # of rltrain's tiny model, whose tokenizer all of these use
SHAPE = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=1, pad_token_id=0,
             tie_word_embeddings=False, initializer_range=0.2)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2)
FAMILIES = {
    "llama": {}, "mistral": dict(sliding_window=5), "qwen2": {}, "qwen3": dict(head_dim=16), "phi": {}, "phi3": {},
    "gpt_neox": {}, "gpt2": dict(n_embd=32, n_inner=48, n_layer=2, n_head=4, n_positions=64, tie_word_embeddings=True),
    "gemma2": dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=5, tie_word_embeddings=True),
    "gemma3_text": dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=5, tie_word_embeddings=True),
    "smollm3": {}, "granite": dict(embedding_multiplier=3.0, residual_multiplier=0.3, logits_scaling=1.5), "olmo2": {},
    "olmo3": dict(sliding_window=5), "ministral": dict(head_dim=8, sliding_window=5), "exaone4": dict(sliding_window=5),
    "cohere2": dict(sliding_window=5), "glm4": dict(head_dim=8), "starcoder2": dict(sliding_window=5), "stablelm": {},
    "mixtral": EXPERTS, "qwen3_moe": dict(head_dim=16, moe_intermediate_size=24, **EXPERTS), "olmoe": EXPERTS, "granitemoe": dict(num_local_experts=4, num_experts_per_tok=2),
    "gpt_oss": dict(num_local_experts=4, num_experts_per_tok=2, head_dim=8, rope_parameters=dict(rope_type="default", rope_theta=100.0)),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"], num_dense_layers=1, moe_intermediate_size=24, **EXPERTS),
    "qwen3_5_moe_text": dict(layer_types=["linear_attention", "full_attention"], head_dim=16, moe_intermediate_size=24,
                             shared_expert_intermediate_size=16, linear_num_key_heads=2, linear_num_value_heads=4,
                             linear_key_head_dim=8, linear_value_head_dim=8, **EXPERTS),
}
SPARSE = ["mixtral", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss", "lfm2_moe", "qwen3_5_moe_text"]
PARAMETERS = ["experts.gate_up_proj", "experts.down_proj"]
TARGETS = {"phi3": ["qkv_proj", "down_proj"], "gpt2": ["c_attn", "mlp.c_proj"], "gpt_neox": ["query_key_value", "dense_4h_to_h"],
           "phi": ["q_proj", "dense", "fc2"], "starcoder2": ["q_proj", "v_proj", "c_proj"], "mixtral": ["q_proj", "v_proj"],
           **{family: ["q_proj", "v_proj"] for family in ("qwen3_moe", "olmoe", "granitemoe", "gpt_oss", "lfm2_moe", "qwen3_5_moe_text")}}


def settings(family):
    """Yield LoRA configurations of PEFT, by name."""
    targets = TARGETS.get(family, ["q_proj", "v_proj", "down_proj"])
    common = dict(r=3, lora_alpha=7, target_modules=targets, fan_in_fan_out=family == "gpt2")
    first = targets[0]
    yield "dora", common | dict(use_dora=True)
    if family in SPARSE:
        yield "experts", common | dict(target_parameters=PARAMETERS, rank_pattern={r".*\.gate_up_proj": 2})
    if family in ("llama", "gpt2"):  # the other cases cover the differences between families
        yield "lora", common
        yield "patterns", common | dict(rank_pattern={rf"1\..*\.{first}": 5, first: 2}, alpha_pattern={targets[-1]: 11})
        yield "rslora", common | dict(use_rslora=True)
        yield "all-linear", common | dict(target_modules="all-linear")
    if family in ("llama", "phi"):
        yield "modules_to_save", common | dict(modules_to_save=["embed_tokens", "lm_head"])
    if family == "llama":  # PEFT stores these tables next to their adapters
        yield "lm_head", common | dict(target_modules=[first, "lm_head"])
        yield "embed_tokens", common | dict(target_modules=[first, "embed_tokens"])


def log_probs(model, rows):
    """Return the log-probability of each token after the first, for each row."""
    out = []
    for ids in rows:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double()
        out.append(logits.log_softmax(-1)[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0])
    return out


def scored(rows, scratch, *model):
    """Return the same values from rltrain score."""
    path = scratch / "rows-of-ids.jsonl"
    path.write_text("".join(json.dumps({"prompt_ids": ids[:1], "completion_ids": ids[1:]}) + "\n" for ids in rows))
    out = rltrain("score", "--threads", 1, "--input", path, *model)
    return [torch.tensor(json.loads(line)["logprobs"], dtype=torch.float64) for line in out.splitlines()]


def equal(name, wanted, got):
    differ = max((a - b).abs().max().item() for a, b in zip(wanted, got, strict=True))
    check(name, differ <= LIMIT, f"log-probabilities differ by {differ:.1e}")


def randomise(parameters, draw):
    with torch.no_grad():
        for _, p in sorted(parameters):
            p.copy_(0.2 * torch.randn(p.shape, generator=draw) + (p.dim() == 1))


def base_model(family, folder, tiny):
    draw = torch.Generator().manual_seed(7)
    config = AutoConfig.for_model(family, **{**SHAPE, **FAMILIES[family]})
    model = AutoModelForCausalLM.from_config(config).eval()
    randomise(model.named_parameters(), draw)
    model.save_pretrained(folder)
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(tiny / name, folder)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def merges(name, adapter, wanted, rows, scratch):
    """Check that the merged folder equals the model with its adapter, in transformers."""
    merged = scratch / "merged" / name.replace(" ", "-")
    rltrain("merge", "--model", adapter, "--output", merged)
    model, info = AutoModelForCausalLM.from_pretrained(merged, output_loading_info=True)
    lost = [*info["missing_keys"], *info["unexpected_keys"]]
    check(f"{name}: merged, no tensor is missing or unexpected", not lost, ", ".join(lost))
    equal(f"{name}: merged, transformers = PEFT on the adapter", wanted, log_probs(model.eval(), rows))


def check_family(family, scratch, tiny, rows):
    base = scratch / "bases" / family
    with attempt(f"{family}: model"):
        plain = base_model(family, base, tiny)
        equal(f"{family}: transformers = rltrain score", log_probs(plain, rows), scored(rows, scratch, "--model", base))

    with attempt(f"{family}: trained by rltrain"):
        output = scratch / "trained" / family
        rltrain("--task", "chat", "--model", base, "--dataset", scratch / "talk.jsonl", "--output-dir", output, "--tuning", "lora", "--lora-r", 4,
                "--epochs", 2, "--learning-rate", "1e-2", "--threads", 1,
                *(["--lora-target-parameters", ",".join(PARAMETERS)] if family in SPARSE else []))
        folder = output / "chat_supervised"
        model = loads_in_peft(f"{family}: trained by rltrain, in PEFT", AutoModelForCausalLM.from_pretrained(base), folder)
        wanted = log_probs(model, rows)
        equal(f"{family}: trained by rltrain, PEFT = rltrain score", wanted, scored(rows, scratch, "--model", folder))
        merges(f"{family} trained", folder, wanted, rows, scratch)

    draw = torch.Generator().manual_seed(11)
    for kind, config in settings(family):
        with attempt(f"{family}: {kind} of PEFT"):
            model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(task_type="CAUSAL_LM", **config))
            randomise(((k, p) for k, p in model.named_parameters() if p.requires_grad), draw)
            folder = scratch / "adapters" / family / kind
            model.save_pretrained(folder, save_embedding_layers=True if kind in ("lm_head", "embed_tokens") else "auto")
            wanted = log_probs(PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder).eval(), rows)
            equal(f"{family}: {kind} of PEFT = rltrain score", wanted, scored(rows, scratch, "--model", base, "--adapter", folder))
            if kind == "experts" or family in ("llama", "gpt2") and kind in ("dora", "modules_to_save"):
                merges(f"{family} {kind}", folder, wanted, rows, scratch)


def check_language_models(scratch):
    draw = random.Random(3)
    rows = [[draw.randrange(3, VOCABULARY) for _ in range(draw.randrange(2, 30))] for _ in range(6)]
    with open(scratch / "talk.jsonl", "w", encoding="utf-8") as f:
        for i in range(24):
            f.write(json.dumps({"prompt": f"{i % 7} and {i % 5} make ", "completion": f"{i % 7 + i % 5}."}) + "\n")
    # A run of one step writes rltrain's tiny model; only its tokenizer is needed.
    rltrain("--task", "chat", "--model", "tiny", "--dataset", scratch / "talk.jsonl", "--output-dir", scratch / "first", "--max-steps", 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads do not help for models of this size
    tiny, = (scratch / "first").glob("tiny-*")
    for family in FAMILIES:
        check_family(family, scratch, tiny, rows)
    torch.set_num_threads(threads)
