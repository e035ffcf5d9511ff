"""Token ids, labels and loss from TRL's SFTTrainer, as cases for the Go tests: part of compat.py."""
import json
import random
import shutil
import warnings

import torch
from checks import ROOT
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer

TOKENIZERS = ROOT / "torch" / "transformers" / "tokenizer" / "testdata"
# Marks assistant turns for training, from after the header to the end of the turn.
TEMPLATE = """{%- if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}{{ '[' + call.function.name + (call.function.arguments | tojson) + ']' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endgeneration %}
{%- else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
UNMARKED = TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def model_folder(folder, tokenizer, template, positions=1024):
    """Save a small Llama with random weights and a tokenizer of the Go tests."""
    shutil.copytree(TOKENIZERS / tokenizer, folder, ignore=shutil.ignore_patterns("config.json"))
    (folder / "chat_template.jinja").write_text(template)
    LlamaConfig(vocab_size=8).save_pretrained(folder)  # decides the tokenizer's class
    vocabulary = len(AutoTokenizer.from_pretrained(folder))
    torch.manual_seed(4)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=positions, bos_token_id=None, eos_token_id=1, pad_token_id=0, initializer_range=0.3)).save_pretrained(folder)
    return folder


def rows(kind, texts, end):
    """Yield rows of a data set. Some texts and completions already end with the end token."""
    draw = random.Random(kind)

    def text(least=1):
        return " ".join(draw.sample(texts, draw.randrange(least, 4)))

    def turns(tools):
        talk = [{"role": "system", "content": text()}] if draw.random() < 0.5 else []
        for _ in range(draw.randrange(1, 4)):
            talk.append({"role": "user", "content": text()})
            if tools and draw.random() < 0.6:
                talk.append({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "find", "arguments": {"what": text()}}}]})
                talk.append({"role": "tool", "content": text()})
            talk.append({"role": "assistant", "content": text()})
        return talk

    for i in range(12):
        ending = end if i % 3 == 0 else ""
        match kind:
            case "text":
                yield {"text": text() + ending}
            case "completion":
                yield {"prompt": text() + "\n", "completion": text() + ending}
            case "messages":
                yield {"messages": turns(False)}
            case "tools":
                tool = {"type": "function", "function": {"name": "find", "description": text(), "parameters": {"type": "object", "properties": {"what": {"type": "string"}}}}}
                yield {"messages": turns(True), "tools": [tool]}
            case "conversations":
                yield {"prompt": [{"role": "user", "content": text()}], "completion": [{"role": "assistant", "content": text()}]}


def write(path, found):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found), encoding="utf-8")
    return path


def divided(scratch, kind, how, found):
    """Write the rows to one file, two files, or one file with a split column. Return the folder and both parts."""
    train, held = found[:8], found[8:]
    folder = scratch / f"{kind}-{how}"
    match how:
        case "files":
            write(folder / "train.jsonl", train)
            write(folder / "validation.jsonl", held)
        case "column":
            write(folder / "rows.jsonl", [{**row, "split": "train"} for row in train] + [{**row, "split": "validation"} for row in held])
        case "whole":
            write(folder / "rows.jsonl", found)
            train, held = found, []
    return folder, train, held


def trained(scratch, model, data, settings):
    """Return the trainer's inputs and loss before its first step: token ids, labels, loss."""
    dataset = load_dataset("json", data_files=str(write(scratch / "trl.jsonl", data)), split="train", cache_dir=str(scratch / "cache"))
    args = SFTConfig(output_dir=str(scratch / "trl"), report_to="none", use_cpu=True, bf16=False, packing=False, dataset_num_proc=None, **settings)
    trainer = SFTTrainer(model=AutoModelForCausalLM.from_pretrained(model), args=args, train_dataset=dataset,
                         processing_class=AutoTokenizer.from_pretrained(model))
    rows = [dict(row) for row in trainer.train_dataset]
    if not rows:
        return {"input_ids": []}
    batch = trainer.data_collator([{k: row[k] for k in ("input_ids", "labels")} for row in rows])
    trainer.model.eval()
    with torch.no_grad():
        logits = trainer.model(input_ids=batch["input_ids"], attention_mask=batch.get("attention_mask")).logits.double()
    labels = batch["labels"][:, 1:]
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten(), ignore_index=-100).item()
    return {"input_ids": [list(row["input_ids"]) for row in rows], "labels": [list(row["labels"]) for row in rows], "loss": loss}


def sft_cases(scratch, texts):
    runs = [  # kind of rows, how they are split, settings
        ("text", "whole", {}), ("text", "files", {}), ("text", "column", {}), ("text", "whole", {"max_length": 20}),
        ("completion", "whole", {"completion_only_loss": True}), ("completion", "whole", {"completion_only_loss": False}),
        ("completion", "column", {"completion_only_loss": True, "max_length": 200}),
        ("messages", "whole", {}), ("messages", "whole", {"assistant_only_loss": True}), ("messages", "files", {"assistant_only_loss": True, "max_length": 200}),
        ("tools", "whole", {}), ("tools", "whole", {"assistant_only_loss": True}),
        ("conversations", "whole", {"completion_only_loss": True}),
    ]
    for tokenizer in ["bytes", "llama/first", "fallback"]:
        name = tokenizer.replace("/", "-")
        model = model_folder(scratch / f"sft-{name}", tokenizer, TEMPLATE)
        unmarked = model_folder(scratch / f"sft-{name}-unmarked", tokenizer, UNMARKED)
        end = AutoTokenizer.from_pretrained(model).eos_token
        for i, (kind, how, settings) in enumerate(runs):
            folder, train, held = divided(scratch / f"sft-data-{name}", kind, how, list(rows(kind, texts, end)))
            settings = {"max_length": 1000, **settings}
            for validation, data in [(False, train), (True, held)]:
                if not data:
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    made = trained(scratch, model, data, settings)
                if not made["input_ids"]:
                    raise RuntimeError(f"{tokenizer}, {kind}: TRL dropped all rows")
                for base in [model, unmarked] if "assistant_only_loss" in settings else [model]:
                    called = ", ".join([name, kind, how, "validation" if validation else "training", *map(str, settings.items()), base.name])
                    yield {"name": called, "model": str(base), "data": str(folder), "validation": validation, **settings, **made}
