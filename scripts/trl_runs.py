"""Run commands and files written for TRL, alignment-handbook, open-r1 and Unsloth with rltrain. Run by `make compat`.

Each is run by rltrain as it is, on small rows and a small model of random weights. TRL runs those of SFT and DPO in which one
batch has all rows, so that the order of rows decides nothing, by its own parser and script: the losses of ten steps must be
equal. Sampled completions differ, so GRPO's formulas are compared by the Go tests of rl/train.
"""
import contextlib
import importlib
import io
import json
import pathlib
import sys
import tempfile
import textwrap
import warnings

import trl
from checks import LIMIT, check, results, rltrain
from sft import TEMPLATE, model_folder

ROWS, STEPS = 8, 10
WHOLE = f"--per_device_train_batch_size {ROWS} --num_train_epochs {STEPS} --logging_steps 1 --save_strategy no --report_to none --use_cpu True --bf16 False"
HALVES = WHOLE.replace(f"size {ROWS}", f"size {ROWS // 2} --gradient_accumulation_steps 2")
GRPO = "--num_generations 4 --max_completion_length 8 --use_peft --lora_r 4"

# The name, TRL's command, its arguments, and whether TRL's losses are compared. DATA and MODEL stand for folders.
COMMANDS = [
    ("sft, all weights, accumulated", "sft", f"--model_name_or_path MODEL --dataset_name DATA/sft {HALVES} --learning_rate 2.0e-3 --lr_scheduler_type linear --warmup_steps 2 "
     "--weight_decay 0.01 --max_grad_norm 0.5 --max_length 512 --attn_implementation eager --gradient_checkpointing False --eval_strategy no --disable_tqdm True", True),
    ("sft, texts, cosine, AdamW's settings", "sft", f"--model_name_or_path MODEL --dataset_name DATA/texts --dataset_text_field text {WHOLE} --learning_rate 1e-3 "
     "--lr_scheduler_type cosine --warmup_steps 0.2 --adam_beta1 0.8 --adam_beta2 0.95 --adam_epsilon 1e-6 --optim adamw_torch --dataloader_num_workers 0 "
     "--save_total_limit 1 --load_best_model_at_end False", True),
    ("sft, prompt and completion, floor of the rate", "sft", f"--model_name_or_path MODEL --dataset_name DATA/pairs {WHOLE} --learning_rate 1e-3 "
     "--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs {\"min_lr_rate\":0.1} --warmup_steps 2 --completion_only_loss True --dataset_num_proc 1", True),
    ("dpo, all weights, accumulated", "dpo", f"--model_name_or_path MODEL --dataset_name DATA/dpo {HALVES} --learning_rate 1e-3 --beta 0.2 --max_length 512 --no_remove_unused_columns "
     "--precompute_ref_log_probs False --lr_scheduler_type constant --adam_beta2 0.99", True),
    ("dpo, two losses with weights", "dpo", f"--model_name_or_path MODEL --dataset_name DATA/dpo {WHOLE} --learning_rate 5e-4 --loss_type sigmoid sft --loss_weights 1.0 0.4 "
     "--lr_scheduler_type constant_with_warmup --warmup_steps 3 --max_steps 10", True),
    ("sft, adapter, packing, a handbook's way", "sft", "--model_name_or_path MODEL --dataset_name DATA/sft --use_peft --lora_r 4 --lora_alpha 8 --lora_dropout 0.05 "
     "--lora_target_modules q_proj v_proj o_proj --lora_task_type CAUSAL_LM --packing --max_length 128 --per_device_train_batch_size 2 "
     "--gradient_accumulation_steps 2 --max_steps 3 --eval_strategy steps --eval_steps 2 --learning_rate 2.0e-4 --logging_steps 1 --overwrite_output_dir --torch_dtype float32", False),
    ("dpo, adapter, evaluation by steps", "dpo", "--model_name_or_path MODEL --dataset_name DATA/dpo --use_peft --lora_r 4 --lora_alpha 8 --lora_target_modules all-linear "
     "--per_device_train_batch_size 2 --gradient_accumulation_steps 2 --max_steps 4 --eval_strategy steps --eval_steps 2 --learning_rate 5.0e-6 --num_train_epochs 1", False),
    ("reward model", "reward", "--model_name_or_path MODEL --dataset_name DATA/dpo --per_device_train_batch_size 4 --num_train_epochs 1 --learning_rate 1.0e-4 "
     "--use_peft --lora_task_type SEQ_CLS --lora_r 4 --lora_alpha 8 --max_length 256 --eval_strategy epoch", False),
    ("grpo, two steps", "grpo", f"--model_name_or_path MODEL --dataset_name DATA/rl.jsonl --reward_funcs accuracy_reward {GRPO} --learning_rate 1e-4 --max_prompt_length 64 "
     "--per_device_train_batch_size 8 --temperature 1.0 --beta 0.0 --log_completions --max_steps 2 --adam_beta2 0.99 --optim adamw_torch_fused", False),
    ("grpo, open-r1's rewards with weights", "grpo", f"--model_name_or_path MODEL --dataset_name DATA/rl.jsonl --reward_funcs accuracy format tag_count --reward_weights 1.0 0.5 0.5 "
     f"{GRPO} --loss_type dr_grpo --scale_rewards none --num_iterations 2 --max_steps 4 --use_vllm True --vllm_mode colocate --vllm_gpu_memory_utilization 0.3", False),
    ("rloo", "rloo", "--model_name_or_path MODEL --dataset_name DATA/rl.jsonl --reward_funcs think_format_reward --num_generations 4 --max_completion_length 8 "
     "--beta 0.05 --max_steps 2 --learning_rate 1e-5 --steps_per_generation 2 --per_device_train_batch_size 4 --gradient_accumulation_steps 1", False),
    ("Unsloth's script", "sft", "--model_name MODEL --dataset DATA/sft --max_seq_length 256 --r 4 --lora_alpha 8 --lora_dropout 0.0 --bias none "
     "--target_modules q_proj k_proj v_proj --use_gradient_checkpointing unsloth --random_state 3407 --per_device_train_batch_size 2 --gradient_accumulation_steps 2 "
     "--warmup_steps 1 --max_steps 3 --learning_rate 2e-4 --optim adamw_torch --weight_decay 0.005 --lr_scheduler_type linear --logging_steps 1 --seed 7", False),
]

FILES = [
    ("a handbook's file", "sft", """
        model_name_or_path: MODEL
        model_revision: main
        torch_dtype: float32
        attn_implementation: sdpa
        dataset_name: DATA/sft
        dataset_train_split: train
        preprocessing_num_workers: 2
        learning_rate: 2.0e-4
        lr_scheduler_type: cosine
        warmup_ratio: 0.1
        num_train_epochs: 1
        max_steps: -1
        per_device_train_batch_size: 4
        gradient_accumulation_steps: 2
        gradient_checkpointing: true
        gradient_checkpointing_kwargs:
          use_reentrant: false
        max_length: 128
        logging_strategy: steps
        logging_steps: 1
        save_strategy: "no"
        overwrite_output_dir: true
        hub_model_id: null
        report_to: []
        use_peft: true
        lora_r: 4
        lora_alpha: 8
        lora_modules_to_save: null
        lora_target_modules:
        - q_proj
        - v_proj
        """),
    ("open-r1's file", "grpo", """
        model_name_or_path: MODEL
        dataset_name: DATA/rl.jsonl
        system_prompt: "Answer with the number alone."
        chat_template_kwargs:
          enable_thinking: false
        reward_funcs:
        - accuracy
        - format
        reward_weights:
        - 1.0
        - 0.5
        num_generations: 4
        max_prompt_length: 64
        max_completion_length: 8
        learning_rate: 2.0e-05
        lr_scheduler_type: cosine_with_min_lr
        lr_scheduler_kwargs:
          min_lr_rate: 0.1
        warmup_ratio: 0.1
        per_device_train_batch_size: 8
        num_train_epochs: 1
        do_eval: false
        use_vllm: true
        log_completions: true
        seed: 7
        use_peft: true
        lora_r: 4
        """),
    ("accelerate's keys in a file for dpo", "dpo", """
        compute_environment: LOCAL_MACHINE
        distributed_type: MULTI_GPU
        mixed_precision: "no"
        num_processes: 1
        deepspeed: null
        model_name_or_path: MODEL
        dataset_name: DATA/dpo
        beta: 0.05
        loss_type: [sigmoid]
        learning_rate: 5.0e-7
        max_steps: 3
        per_device_train_batch_size: 2
        use_peft: true
        lora_r: 4
        lora_alpha: 4
        """),
]


def data(folder):
    """Write rows for every command, whose texts say nothing."""
    def write(name, rows):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    words = ["ash", "birch", "cedar", "fir", "oak", "pine", "elm", "yew"]
    user = [{"role": "user", "content": f"name tree {i}"} for i in range(ROWS)]
    said = [[{"role": "assistant", "content": word}] for word in words]
    wrong = [{"role": "assistant", "content": "no tree"}]
    write("sft/train.jsonl", [{"messages": [u, *s]} for u, s in zip(user, said)])
    write("texts/train.jsonl", [{"text": f"{i} trees are more than {i - 1}: {word}"} for i, word in enumerate(words)])
    write("pairs/train.jsonl", [{"prompt": f"tree {i}: ", "completion": word} for i, word in enumerate(words)])
    write("dpo/train.jsonl", [{"prompt": [u], "chosen": s, "rejected": wrong} for u, s in zip(user, said)])
    for name in ["sft", "dpo"]:
        (folder / name / "test.jsonl").write_text((folder / name / "train.jsonl").read_text())
    write("rl.jsonl", [{"prompt": [{"role": "user", "content": f"how much is {i} and {i}?"}], "answer": str(2 * i)} for i in range(40)])
    return folder


def by_trl(command, arguments, output):
    """Run TRL's own script with its own parser. Return the losses that it logs."""
    script = importlib.import_module(f"trl.scripts.{command}")
    made = []
    name = {"sft": "SFTTrainer", "dpo": "DPOTrainer"}[command]
    trainer = getattr(trl, name)

    class Seen(trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    setattr(trl, name, Seen)
    before = sys.argv
    try:
        sys.argv = [command]
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            parsed = script.make_parser().parse_args_and_config(args=[*arguments, "--output_dir", str(output)], fail_with_unknown_args=True)
            script.main(*parsed)
    finally:
        sys.argv = before
        setattr(trl, name, trainer)
    return [step["loss"] for step in made[0].state.log_history if "loss" in step]


def more(command):
    """Return options of rltrain's own: one thread, and random weights that no reward has to like."""
    return ["--threads", 1, *(["--allow-no-signal"] if command in ("grpo", "rloo") else [])]


def losses(output):
    """Return the losses of the only stage in a run's folder."""
    found, = output.glob("*/logs/metrics.jsonl")
    return [step["loss"] for step in map(json.loads, found.read_text().splitlines()) if "loss" in step]


def check_trl_runs(scratch):
    model = model_folder(scratch / "trl-runs-model", "bytes", TEMPLATE)
    rows = data(scratch / "trl-runs-data")

    def filled(text):
        return text.replace("MODEL", str(model)).replace("DATA", str(rows))

    for i, (name, command, arguments, compared) in enumerate(COMMANDS):
        arguments, output = filled(arguments).split(), scratch / f"trl-run-{i}"
        try:
            rltrain(command, *arguments, "--output_dir", output, *more(command), *(["--defaults", "trl"] if compared else []))
        except RuntimeError as e:
            check(f"{name} runs", False, str(e))
            continue
        check(f"{name} runs", True)
        if compared:
            ours, theirs = losses(output), by_trl(command, arguments, scratch / f"trl-own-{i}")
            worst = max((abs(a - b) for a, b in zip(ours, theirs, strict=True)), default=1)
            check(f"{name}: the losses of {len(theirs)} steps are TRL's", len(theirs) == STEPS and worst <= LIMIT, f"off by {worst:.1e} at most; from {theirs[0]:.4f} to {theirs[-1]:.4f}")
    for i, (name, command, text) in enumerate(FILES):
        path = scratch / f"trl-file-{i}.yaml"
        path.write_text(filled(textwrap.dedent(text)))
        try:
            rltrain(command, "--config", path, "--output_dir", scratch / f"trl-file-{i}", *more(command))
            check(f"{name} runs", True)
        except RuntimeError as e:
            check(f"{name} runs", False, str(e))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        check_trl_runs(pathlib.Path(folder))
    print(results)
    sys.exit(results["failed"] > 0)
