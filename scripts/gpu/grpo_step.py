#!/usr/bin/env python3
"""One step of TRL's GRPOTrainer: completions, rewards and an update of LoRA on all linear layers."""
import contextlib
import random
import statistics
import sys
import tempfile
import time

import torch
from common import Memory, adapter, emit, flags, random_model, wait

LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
SKIPPED = 2  # first steps, not measured


def characters():
    """Return a character tokenizer. Ids beyond its vocabulary, which the model may sample, decode to nothing."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    names = ["<pad>", "<eos>", "<unk>", *LETTERS]
    made = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left")


def digit_sum(completions, **_):
    return [float(sum(int(c) for c in text if c.isdigit())) for text in completions]


def prompts(a):
    draw = random.Random(3)
    return ["".join(draw.choices(LETTERS, k=a.prompt)) for _ in range(256)]


def trainer(a, folder):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    config = GRPOConfig(
        output_dir=folder, per_device_train_batch_size=a.batch, num_generations=a.group, max_completion_length=a.new,
        beta=a.beta, max_steps=SKIPPED + a.reps + 1, learning_rate=1e-4, lr_scheduler_type="constant", logging_steps=10**6, report_to=[],
        save_strategy="no", use_cpu=a.device == "cpu", bf16=a.dtype == "bf16", gradient_checkpointing=False, temperature=1.0,
        disable_tqdm=True, seed=3, generation_kwargs={"min_new_tokens": a.new})
    return GRPOTrainer(model=random_model(a), args=config, reward_funcs=digit_sum, processing_class=characters(),
                       train_dataset=Dataset.from_dict({"prompt": prompts(a)}), peft_config=adapter(a.r))


def timed(of, name, spent, key, device):
    """Add the time that calls of a method take to spent[key]."""
    method = getattr(of, name)

    def call(*args, **named):
        began = time.perf_counter()
        result = method(*args, **named)
        wait(device)
        spent[key] += time.perf_counter() - began
        return result

    setattr(of, name, call)


def measure(a):
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        t = trainer(a, folder)
        spent, rows, starts = {"generate": 0.0, "rollout": 0.0, "training": 0.0}, [], []
        timed(t, "_generate", spent, "generate", a.device)
        timed(t, "_generate_and_score_completions", spent, "rollout", a.device)
        timed(t, "training_step", spent, "training", a.device)
        step = t.training_step

        def from_start_to_start(*args, **named):
            starts.append(time.perf_counter())
            if len(starts) > 1:
                rows.append({"step": starts[-1] - starts[-2], **spent})
            spent.update(dict.fromkeys(spent, 0.0))
            return step(*args, **named)

        t.training_step = from_start_to_start
        memory = Memory(a.device)
        t.train()
        return rows[SKIPPED:], memory.figures()


def main():
    p = flags(__doc__)
    p.add_argument("--r", type=int, default=8, help="rank of the adapters")
    p.add_argument("--group", type=int, default=8, help="completions per prompt")
    p.add_argument("--batch", type=int, default=32, help="completions per step")
    p.add_argument("--prompt", type=int, default=32, help="tokens per prompt")
    p.add_argument("--new", type=int, default=32, help="tokens per completion")
    p.add_argument("--beta", type=float, default=0.0, help="coefficient of the KL to the reference policy")
    a = p.parse_args()
    rows, memory = measure(a)
    best = min(rows, key=lambda row: row["step"])
    best["update"] = best["step"] - best["rollout"]
    emit("grpo_step", shape=a.shape, dtype=a.dtype, device=a.device, r=a.r, group=a.group, batch=a.batch, prompt=a.prompt, new=a.new,
         beta=a.beta, best_s=best["step"], median_s=statistics.median(row["step"] for row in rows), reps=len(rows),
         split_s=best, completions_per_s=a.batch / best["step"], **memory)


if __name__ == "__main__":
    main()
