"""Preference training against TRL's trainers, on the same file, step by step: part of compat.py.

usage: scripts/compat.sh scripts/preferences.py FILE...

With FILEs in LLaMA-Factory's or OpenAI's layout (JSON or JSON Lines), does the same with their first rows: rltrain reads
them unchanged, TRL in its own layout.
"""
import contextlib
import json
import pathlib
import random
import shutil
import sys
import tempfile
import warnings
from unittest import mock

import torch
from checks import LIMIT, attempt, check, results, rltrain
from datasets import load_dataset
from sft import TEMPLATE, model_folder, write
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer, cpo_trainer

STEPS, BETA, LENGTH = 3, 0.2, 1000
FILE_PAIRS, FILE_LENGTH = 4, 2000  # pairs from a file (four times as many single responses); the limit truncates some rows
FILE_LATER = 1e-3  # from the second update on, because Adam amplifies rounding of long rows
FIGURES = ["loss", "grad_norm", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected"]
OPTIONS = {"label_smoothing": "--label-smoothing", "cpo_alpha": "--cpo-alpha", "simpo_gamma": "--simpo-gamma"}
JUDGED = {"accuracy": "rewards/accuracies", "margin": "rewards/margins", "logps_chosen": "logps/chosen", "logps_rejected": "logps/rejected"}
LOSSES = [  # --loss-type, TRL's trainer and its settings
    ("sigmoid", DPOTrainer, DPOConfig, dict(loss_type=["sigmoid"])),
    ("hinge", DPOTrainer, DPOConfig, dict(loss_type=["hinge"])),
    ("ipo", DPOTrainer, DPOConfig, dict(loss_type=["ipo"])),
    ("robust", DPOTrainer, DPOConfig, dict(loss_type=["robust"], label_smoothing=0.1)),
    ("apo_zero", DPOTrainer, DPOConfig, dict(loss_type=["apo_zero"])),
    ("apo_down", DPOTrainer, DPOConfig, dict(loss_type=["apo_down"])),
    ("sigmoid,sft", DPOTrainer, DPOConfig, dict(loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.3])),
    ("cpo", CPOTrainer, CPOConfig, dict(loss_type="sigmoid", cpo_alpha=0.5)),
    ("simpo", CPOTrainer, CPOConfig, dict(loss_type="simpo", cpo_alpha=0.0, simpo_gamma=0.4)),
    ("kto", KTOTrainer, KTOConfig, {}),
]


def rows(kind, texts):
    draw = random.Random(kind)

    def text():
        return " ".join(draw.sample(texts, draw.randrange(1, 4)))

    for i in range(6):
        question, good, bad = text(), text() + " yes", text() + " no"
        match kind:
            case "explicit":
                yield {"prompt": question + "\n", "chosen": good, "rejected": bad}
            case "implicit":
                yield {"chosen": f"{question}: {good}", "rejected": f"{question}: {bad}"}
            case "messages":
                said = [{"role": "user", "content": question}]
                yield {"prompt": said, "chosen": [{"role": "assistant", "content": good}], "rejected": [{"role": "assistant", "content": bad}]}
            case "implicit messages":
                said = [{"role": "system", "content": text()}, {"role": "user", "content": question}]
                yield {"chosen": [*said, {"role": "assistant", "content": good}], "rejected": [*said, {"role": "assistant", "content": bad}]}
            case "single":
                yield {"prompt": question + "\n", "completion": good if i % 2 else bad, "label": i % 2 == 1}


def as_the_template_ends(_, chosen, rejected):
    return chosen, rejected


def by_trl(scratch, model, data, trainer, config, settings, length=LENGTH):
    """Return what TRL logs at each step; the file is one batch."""
    dataset = load_dataset("json", data_files=str(data), split="train", cache_dir=str(scratch / "cache"))
    args = config(output_dir=str(scratch / "trl"), report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, beta=BETA, max_length=length,
                  per_device_train_batch_size=len(dataset), max_steps=STEPS, learning_rate=1e-3, lr_scheduler_type="constant", logging_steps=1,
                  save_strategy="no", disable_tqdm=True, remove_unused_columns=False, **settings)
    reference = {"ref_model": AutoModelForCausalLM.from_pretrained(model)} if trainer in (DPOTrainer, KTOTrainer) else {}
    made = trainer(model=AutoModelForCausalLM.from_pretrained(model), args=args, train_dataset=dataset,
                   processing_class=AutoTokenizer.from_pretrained(model), **reference)
    made.train()
    return [step for step in made.state.log_history if "loss" in step]


def by_rltrain(scratch, model, data, loss, settings, length=LENGTH):
    output = scratch / "ours"
    more = [x for name, flag in OPTIONS.items() if settings.get(name) for x in (flag, settings[name])]
    if "loss_weights" in settings:
        more += ["--loss-weights", ",".join(map(str, settings["loss_weights"]))]
    with open(data, encoding="utf-8") as f:
        count = len(f.readlines())
    rltrain("--task", "preference", "--algorithm", "dpo", "--loss-type", loss, "--beta", BETA, "--model", model, "--dataset", data, "--output-dir", output,
            "--tuning", "full", "--batch-size", count, "--max-steps", STEPS, "--learning-rate", 1e-3, "--lr-scheduler-type", "constant",
            "--logging-steps", 1, "--validation-share", 0, "--threads", 1, "--max-length", length, *more)
    lines = (output / "preference_rl" / "logs" / "metrics.jsonl").read_text().splitlines()
    return [step for step in map(json.loads, lines) if "loss" in step]


def compare(name, ours, theirs, figures, later=LIMIT):
    """Compare the figures that both log: the first step within LIMIT, others within later. Losses and rewards may also
    differ by the last bit of the sums they are computed from. Skips accuracies where policy and reference are still equal,
    because rounding decides them."""
    worst, where = 0.0, "no figure"
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for figure in figures:
            if figure not in b or figure == "rewards/accuracies" and abs(b["rewards/margins"]) < LIMIT:
                continue
            bit = BETA * 2**-23 * abs(min(b.get("logps/chosen", 0), b.get("logps/rejected", 0))) if figure == "loss" or figure.startswith("rewards/") else 0
            gap = max(0, abs(a[figure] - b[figure]) - bit) / max(1, abs(b[figure])) / (later if i else LIMIT)
            if gap >= worst:
                worst, where = gap, f"{figure} of step {i + 1}: {a[figure]:.6f}, TRL {b[figure]:.6f}"
    check(name, worst <= 1 and where != "no figure", where)


def moved(folder, model):
    """Copy a model and change its weights, so that it differs from the reference."""
    shutil.copytree(model, folder)
    torch.manual_seed(5)
    changed = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        for weight in changed.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    changed.save_pretrained(folder)
    return folder


def judged_by_trl(scratch, model, reference, data, trainer, config, settings, length):
    """Return TRL's figures for an untrained model on the rows; the file is one batch."""
    dataset = load_dataset("json", data_files=str(data), split="train", cache_dir=str(scratch / "cache"))
    args = config(output_dir=str(scratch / "trl"), report_to="none", use_cpu=True, bf16=False, beta=BETA, max_length=length, per_device_eval_batch_size=len(dataset),
                  disable_tqdm=True, remove_unused_columns=False, **settings)
    more = {"ref_model": AutoModelForCausalLM.from_pretrained(reference)} if trainer in (DPOTrainer, KTOTrainer) else {}
    made = trainer(model=AutoModelForCausalLM.from_pretrained(model), args=args, train_dataset=dataset, eval_dataset=dataset,
                   processing_class=AutoTokenizer.from_pretrained(model), **more)
    return {name.removeprefix("eval_"): value for name, value in made.evaluate().items()}


def judged_by_rltrain(scratch, model, reference, data, loss, trainer, settings, length):
    output = scratch / "judged.json"
    output.unlink(missing_ok=True)
    more = ["--reference", reference] if trainer in (DPOTrainer, KTOTrainer) else []
    more += [x for name, flag in OPTIONS.items() if settings.get(name) for x in (flag, settings[name])]
    rltrain("eval", "--task", "preference", "--model", model, "--dataset", data, "--loss-type", loss, "--beta", BETA, "--max-length", length, "--output", output, *more)
    found = json.loads(output.read_text())
    return {"loss": found["loss"], **{theirs: found[ours]["value"] for ours, theirs in JUDGED.items()}}


def as_messages_end(messages):
    """Stop TRL's CPOTrainer from adding an end token after chat templates; its DPOTrainer and rltrain do not add one."""
    return mock.patch.object(cpo_trainer, "add_eos_token_if_needed", as_the_template_ends) if messages else contextlib.nullcontext()


def check_eval(scratch, policy, model, what, data, for_trl, setting, messages, length):
    """Compare rltrain eval of a policy on the rows of data with TRL's evaluation, which reads the rows from for_trl."""
    loss, trainer, config, settings = setting
    name = f"eval of {loss} on {what} against TRL" + (", smoothed" if "label_smoothing" in settings else "")
    with attempt(name), warnings.catch_warnings(), as_messages_end(messages):
        warnings.simplefilter("ignore")
        ours = judged_by_rltrain(scratch, policy, model, data, loss, trainer, settings, length)
        theirs = judged_by_trl(scratch, policy, model, for_trl, trainer, config, settings, length)
        if loss in ("simpo", "kto"):  # TRL defines these differently: simpo averages logps over tokens, kto takes margins between the sides
            for figure in ["logps/chosen", "logps/rejected"] if loss == "simpo" else ["rewards/margins", "rewards/accuracies"]:
                theirs.pop(figure, None)
        compare(name, [ours], [theirs], list(ours))


def check_judged(scratch, model, data):
    """Compare evaluations of all losses, with and without label smoothing."""
    policy = moved(scratch / "preferences-moved", model)
    smoothed = [(loss, trainer, config, settings | {"label_smoothing": 0.2}) for loss, trainer, config, settings in LOSSES if loss in ("robust", "cpo", "simpo")]
    for setting in [found for found in LOSSES if "," not in found[0]] + smoothed:
        kind = "single" if setting[0] == "kto" else "explicit"
        check_eval(scratch, policy, model, f"{kind} rows", data[kind], data[kind], setting, False, LENGTH)


def check_loss(scratch, model, what, data, for_trl, setting, messages, length, later=LIMIT):
    """Compare updates with one loss on the rows of data; TRL reads the rows from for_trl."""
    loss, trainer, config, settings = setting
    with attempt(f"TRL, {what}, {loss}"), warnings.catch_warnings(), as_messages_end(messages):
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        ours, theirs = by_rltrain(scratch, model, data, loss, settings, length), by_trl(scratch, model, for_trl, trainer, config, settings, length)
        if loss == "kto":  # from the second step on, the order of rows decides which responses are paired with which prompts
            ours, theirs = ours[:1], theirs[:1]
        figures = FIGURES[:-2] if loss == "simpo" else FIGURES  # TRL averages logps over tokens in simpo; rltrain always sums
        compare(f"{loss} on {what} against TRL, {len(ours)} updates", ours, theirs, figures, later)


def check_preferences(scratch, texts):
    """Compare each loss on pairs, and each layout with one loss. Leaves out orpo, in which TRL includes the prompt."""
    model = model_folder(scratch / "preferences-model", "bytes", TEMPLATE)
    data = {kind: write(scratch / f"{kind}.jsonl", rows(kind, texts)) for kind in ["explicit", "implicit", "messages", "implicit messages", "single"]}
    runs = [("single" if loss[0] == "kto" else "explicit", loss) for loss in LOSSES] + [(kind, LOSSES[0]) for kind in list(data)[1:4]]
    runs += [("messages", loss) for loss in LOSSES if loss[1] is CPOTrainer]
    for kind, loss in runs:
        check_loss(scratch, model, f"{kind} rows", data[kind], data[kind], loss, kind.endswith("messages"), LENGTH)
    check_judged(scratch, model, data)


def as_trl_reads(row):
    """Convert a row from LLaMA-Factory's or OpenAI's layout to TRL's."""
    def said(turns):
        names = {"human": "user", "gpt": "assistant"}
        return [{"role": names.get(m.get("role", m.get("from")), m.get("role", m.get("from"))), "content": m.get("content", m.get("value"))} for m in turns]

    if "input" in row:
        return {"prompt": said(row["input"]["messages"]), "chosen": said(row["preferred_output"]), "rejected": said(row["non_preferred_output"])}
    if "label" in row:
        return {"prompt": said(row["messages"][:-1]), "completion": said(row["messages"][-1:]), "label": row["label"]}
    return {"prompt": said(row["conversations"]), "chosen": said([row["chosen"]]), "rejected": said([row["rejected"]])}


def first_rows(path):
    text = path.read_text(encoding="utf-8")
    found = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    return found[:4 * FILE_PAIRS if "label" in found[0] else FILE_PAIRS]


def check_files(scratch, paths):
    model = model_folder(scratch / "preferences-model", "bytes", TEMPLATE, positions=FILE_LENGTH)
    policy = moved(scratch / "preferences-moved", model)
    for path in paths:
        found = first_rows(path)
        data, for_trl = write(scratch / "as-it-is" / f"{path.stem}.jsonl", found), write(scratch / "for-trl" / f"{path.stem}.jsonl", map(as_trl_reads, found))
        for loss in LOSSES:
            if (loss[0] == "kto") == ("label" in found[0]):
                what = f"{len(found)} rows of {path.name}"
                check_loss(scratch, model, what, data, for_trl, loss, True, FILE_LENGTH, FILE_LATER)
                if "," not in loss[0]:
                    check_eval(scratch, policy, model, what, data, for_trl, loss, True, FILE_LENGTH)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        check_files(pathlib.Path(folder), [pathlib.Path(name) for name in sys.argv[1:]])
    print(results)
    sys.exit(results["failed"] > 0)
