"""Shared by the peers in scripts/gpu: models with random weights, timing, memory, one line of JSON per case.

A peer takes the flags of the case of `rltrain bench` with its name and prints figures under the same names. Nothing is
fetched.
"""
import argparse
import json
import os
import statistics
import sys
import time
import warnings
from importlib.metadata import version

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore")

import torch  # noqa: E402

# The shapes of cmd/rltrain/bench; all tie the output layer to the embedding.
SHAPES = {
    "tiny": ("llama", dict(num_hidden_layers=4, hidden_size=128, num_attention_heads=4, num_key_value_heads=4,
                           intermediate_size=512, vocab_size=64, rope_theta=1e4)),
    "smol135": ("llama", dict(num_hidden_layers=30, hidden_size=576, num_attention_heads=9, num_key_value_heads=3,
                              intermediate_size=1536, vocab_size=49152, rope_theta=1e5)),
    "qwen1.5b": ("qwen2", dict(num_hidden_layers=28, hidden_size=1536, num_attention_heads=12, num_key_value_heads=2,
                               intermediate_size=8960, vocab_size=151936, rope_theta=1e6)),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FIRST_WORD = 3  # lower ids are special tokens


def flags(description):
    """Return a parser with the flags that all peers have."""
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--device", default="cuda")
    p.add_argument("--shape", choices=SHAPES, default="smol135")
    p.add_argument("--dtype", choices=DTYPES, default="bf16", help="type of the frozen weights")
    p.add_argument("--reps", type=int, default=3, help="minimum repetitions")
    p.add_argument("--seconds", type=float, default=1, help="minimum total time in seconds")
    return p


def random_model(a):
    """Return a model with random weights and no end token, on the device of --device."""
    from transformers import AutoConfig, AutoModelForCausalLM
    kind, sizes = SHAPES[a.shape]
    config = AutoConfig.for_model(kind, max_position_embeddings=2048, rms_norm_eps=1e-5, tie_word_embeddings=True,
                                  bos_token_id=None, eos_token_id=None, pad_token_id=0, **sizes)
    torch.manual_seed(1)
    with torch.device(a.device):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[a.dtype], attn_implementation="sdpa")
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def adapter(r):
    """Return a LoRA configuration for all linear layers."""
    from peft import LoraConfig
    return LoraConfig(r=r, lora_alpha=2 * r, lora_dropout=0.0, target_modules=LINEARS, task_type="CAUSAL_LM")


def wait(device):
    """Wait until the device has finished all work."""
    if device != "cpu":
        torch.cuda.synchronize(device)


class Memory:
    """Memory allocated on the GPU during a case, in MiB; no figures on the CPU."""

    def __init__(self, device):
        self.device = device
        if device != "cpu":
            wait(device)
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device)

    def figures(self):
        if self.device == "cpu":
            return {}
        peak = torch.cuda.max_memory_allocated(self.device)
        return {"gpu": {"name": torch.cuda.get_device_name(self.device), "peak_mb": peak / 2**20,
                        "extra_mb": (peak - self.before) / 2**20,
                        "reserved_mb": torch.cuda.max_memory_reserved(self.device) / 2**20}}


def best_of(step, a):
    """Time step after one warm-up."""
    step()
    wait(a.device)
    times = []
    while len(times) < a.reps or sum(times) < a.seconds and len(times) < 100:
        began = time.perf_counter()
        step()
        wait(a.device)
        times.append(time.perf_counter() - began)
    return summary(times)


def summary(times):
    return {"best_s": min(times), "median_s": statistics.median(times), "reps": len(times)}


def emit(case, **figures):
    """Print one line of JSON and flush it, because the process may be killed later."""
    versions = {}
    for package in ("torch", "transformers", "peft", "trl"):
        try:
            versions[package] = version(package)
        except ImportError:
            pass  # not every peer needs all packages
    sys.stdout.write(json.dumps({"case": case, **figures, "versions": versions}) + "\n")
    sys.stdout.flush()
