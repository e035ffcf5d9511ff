"""Train the row "arithmetic, two digits" of the real-models experiment with TRL: GRPO from SmolLM2-135M-Instruct with the settings that
rltrain has for it. Prints one line of JSON: held-out accuracy before and after with 95 % intervals, steps, minutes.

    python scripts/trl_arithmetic.py --data experiments/real-models/arithmetic_two_digits/data --minutes 60
"""
import argparse
import json
import math
import pathlib
import re
import tempfile
import time

import torch
from checks import rltrain
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

NEW = 12  # tokens of a completion

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with train.jsonl and test.jsonl")
parser.add_argument("--steps", type=int, default=160)
parser.add_argument("--minutes", type=float, default=60, help="stop training after this time")
parser.add_argument("--held-out", type=int, default=300)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--threads", type=int, default=2)
options = parser.parse_args()
torch.set_num_threads(options.threads)
device = "cuda" if torch.cuda.is_available() else "cpu"


def right(text, answer):
    """Whether a completion states the answer in final form: a number alone, or after the last equals sign."""
    found = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*\.?\s*", text.rsplit("=", 1)[-1])
    return bool(found) and float(found.group(1)) == float(answer)


def wilson(k, n, z=1.96):
    p, d = k / n, 1 + z * z / n
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / d
    return [(p + z * z / (2 * n)) / d - half, (p + z * z / (2 * n)) / d + half]


def rows(name):
    return [json.loads(line) for line in (options.data / name).read_text().splitlines()]


def accuracy(model, tokenizer, held):
    model.eval()
    correct = 0
    for at in range(0, len(held), 50):
        part = held[at:at + 50]
        texts = [tokenizer.apply_chat_template([{"role": "user", "content": r["prompt"]}], add_generation_prompt=True, tokenize=False) for r in part]
        batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False).to(device)
        with torch.no_grad():
            out = model.generate(**batch, max_new_tokens=NEW, do_sample=False)
        answers = tokenizer.batch_decode(out[:, batch["input_ids"].shape[1]:], skip_special_tokens=True)
        correct += sum(right(text, r["answer"]) for text, r in zip(answers, part))
    return {"n": len(held), "accuracy": correct / len(held), "interval": wilson(correct, len(held))}


class Clock(TrainerCallback):
    """Stops training when its time is over."""

    def on_train_begin(self, *_, **__):
        self.began = time.monotonic()

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop |= time.monotonic() - self.began > 60 * options.minutes


with tempfile.TemporaryDirectory() as scratch:
    folder = f"{scratch}/smollm2"
    rltrain("export", "--model", "smollm2", "--format", "hf", "--dtype", "bf16", "--output", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device)
    held = rows("test.jsonl")[:options.held_out]
    result = {"before": accuracy(model, tokenizer, held)}
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, callbacks=[Clock()],
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": r["prompt"]}], "answer": r["answer"]} for r in rows("train.jsonl")]),
        reward_funcs=lambda completions, answer, **_: [float(right(c[0]["content"], a)) for c, a in zip(completions, answer)],
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        args=GRPOConfig(output_dir=f"{scratch}/out", per_device_train_batch_size=64, num_generations=8, max_completion_length=NEW, beta=0.0,
                        learning_rate=2e-4, lr_scheduler_type="constant_with_warmup", warmup_steps=round(0.1 * options.steps), max_steps=options.steps,
                        temperature=1.0, gradient_checkpointing=False, bf16=True, use_cpu=device == "cpu", save_strategy="no",
                        report_to=[], logging_steps=1, seed=options.seed),
    )
    began = time.monotonic()
    trainer.train()
    result |= {"steps": trainer.state.global_step, "minutes": (time.monotonic() - began) / 60, "after": accuracy(trainer.model, tokenizer, held)}
    print(json.dumps(result))
