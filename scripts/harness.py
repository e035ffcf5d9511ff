"""Evaluate SmolLM2 with lm-evaluation-harness, through `rltrain serve` and through the harness's own `hf` model, and compare
row by row. Run by `make compat`; rltrain itself needs no Python.

Both read one exported folder in fp32. A task of likelihoods (four choices) and a generative one, 50 rows each, go through
local-completions; the generative one also goes through local-chat-completions, with the chat template.
"""
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

os.environ.pop("RLTRAIN_PYTHON", None)  # rltrain does not know this setting
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("RLTRAIN", str(ROOT / "bin" / "rltrain"))
ROWS = 50
LIMIT = 2e-3  # of the log-likelihood of a choice, in nats

CHOICES = """task: own_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
"""
WRITTEN = """task: own_answers
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 24, do_sample: false, temperature: 0}}
metric_list: [{{metric: exact_match}}]
"""


def write_tasks(folder):
    rng = random.Random(5)
    with open(folder / "rows.jsonl", "w") as f:
        for _ in range(ROWS):
            a, b = rng.randint(2, 30), rng.randint(2, 30)
            choices = [str(a + b + k) for k in (0, 1, -2, 10)]
            right = choices[0]
            rng.shuffle(choices)
            f.write(json.dumps({"question": f"What is {a} plus {b}?", "choices": choices, "answer": choices.index(right)}) + "\n")
    for name, text in ("choices", CHOICES), ("answers", WRITTEN):
        (folder / f"{name}.yaml").write_text(text.format(data=folder / "rows.jsonl"))


def evaluate(folder, model, args, tasks, chat=False):
    got = lm_eval.simple_evaluate(model=model, model_args=args, tasks=tasks, task_manager=TaskManager(include_path=str(folder)),
                                  batch_size=1, log_samples=True, apply_chat_template=chat, verbosity="ERROR")
    return {task: [row["resps"] for row in sorted(rows, key=lambda r: r["doc_id"])] for task, rows in got["samples"].items()}


def main():
    failed = 0

    def check(name, good, detail):
        nonlocal failed
        failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {name}: {detail}", flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write_tasks(folder)
        base = folder / "smollm2"
        subprocess.run([BINARY, "export", "--model", "smollm2", "--format", "hf", "--output", str(base)], check=True, capture_output=True)
        server = subprocess.Popen([BINARY, "serve", "--model", str(base), "--dtype", "fp32", "--port", "0"], stderr=subprocess.PIPE, text=True)
        try:
            for line in server.stderr:
                if found := re.search(r" at (http://\S+)", line):
                    break
            else:
                raise RuntimeError("the server did not start")
            common = {"model": "smollm2", "num_concurrent": 1, "max_retries": 1, "tokenizer": str(base), "tokenizer_backend": "huggingface"}
            tasks = ["own_choices", "own_answers"]
            ours = evaluate(folder, "local-completions", {**common, "base_url": found[1] + "/v1/completions"}, tasks)
            talked = evaluate(folder, "local-chat-completions", {**common, "base_url": found[1] + "/v1/chat/completions"}, tasks[1:], chat=True)
        finally:
            server.terminate()
            server.wait(60)
        hf = {"pretrained": str(base), "dtype": "float32", "device": "cpu"}
        theirs = evaluate(folder, "hf", hf, tasks)
        theirs_talked = evaluate(folder, "hf", hf, tasks[1:], chat=True)

    def likelihoods(rows):
        return [(float(choice[0][0]), str(choice[0][1])) for row in rows for choice in row]

    mine, others = likelihoods(ours["own_choices"]), likelihoods(theirs["own_choices"])
    apart = max(abs(a[0] - b[0]) for a, b in zip(mine, others, strict=True))
    same = sum(a[1] == b[1] for a, b in zip(mine, others, strict=True))
    check("log-likelihoods", apart <= LIMIT and len(mine) == 4 * ROWS, f"{len(mine)} choices, at most {apart:.1e} apart")
    check("greedy or not", same == len(mine), f"{same} of {len(mine)} equal")
    for name, a, b in ("completions", ours, theirs), ("conversations", talked, theirs_talked):
        pairs = list(zip(a["own_answers"], b["own_answers"], strict=True))
        same = sum(x[0][0].strip() == y[0][0].strip() for x, y in pairs)
        check(f"generated texts of {name}", same == ROWS, f"{same} of {ROWS} equal" + "".join(f"; {x} {y}" for x, y in pairs if x[0][0].strip() != y[0][0].strip())[:300])
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
