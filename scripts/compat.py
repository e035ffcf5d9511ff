"""Check the files that rltrain writes against transformers and PEFT. Run by `make compat`; rltrain itself needs no Python.

Classifiers: trains small ones with bin/rltrain (or $RLTRAIN) on the default model and on random encoders of every family,
with both poolings. Loads them with the Python code of their README.md, in which only the texts are replaced, and compares
probabilities with `rltrain predict`. Warnings are errors, except for deprecations in transformers.

Hub: rltrain and transformers fetch a model from a local Hub into separate caches, and each then reads the other's cache.

Language models: exchanges adapters of every family with PEFT, and loads merged models in transformers.

Go tests: passes them cases with the results of transformers and TRL: all chat templates in TRL, texts with the tokenizers of
the Go module and with Llama tokenizers, and data sets as TRL's SFTTrainer encodes them.
"""
import contextlib
import hashlib
import http.server
import importlib.util
import io
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"  # load only local files
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.pop("RLTRAIN_PYTHON", None)  # rltrain does not know this setting

import cases  # noqa: E402
import torch  # noqa: E402
from checks import LIMIT, ROOT, attempt, check, loads_in_peft, results, rltrain  # noqa: E402
from language import FAMILIES, check_language_models  # noqa: E402
from family_tokenizers import family_cases  # noqa: E402
from llama_tokenizers import llama_cases  # noqa: E402
from preferences import check_preferences  # noqa: E402
from sft import sft_cases  # noqa: E402
from trackers import check_trackers  # noqa: E402
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer  # noqa: E402
from transformers import BertConfig, BertForPreTraining, DistilBertConfig, ModernBertConfig, RobertaConfig  # noqa: E402
from tokenizers import processors  # noqa: E402
from transformers.utils import logging  # noqa: E402

CACHE = pathlib.Path(os.environ.get("RLTRAIN_CACHE") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rltrain")
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

# Texts unlike the built-in questions: above the length limit, in other scripts, with special tokens or unusual spaces.
ODD_TEXTS = [
    "a", "?", "the the the the", "[SEP]", "what is [MASK] and [CLS]?", "Café CAFE\u0301 naïve Ångström", "東京 の cat 는 무엇",
    "tab\tand\u00a0no-break   space\u3000wide", "🧪🔬 what?", "x" * 300, "the law of force " * 200, "UPPER lower MiXeD",
    "∫ e^{-x²} dx = √π", "don't can't o'clock e.g. 3.14 1,000", "zero\u200bwidth\u00adhyphen", "<b>html</b> & {json: [1]}",
]

def unraisable(hint):
    check("no destructor raises an exception", False, str(hint.exc_value))  # a warning in a destructor ends here


def predicted(folder, texts, labels):
    """Return the probabilities [texts, labels] of rltrain predict."""
    out = rltrain("predict", "--model", folder, "--json", "--top", len(labels), text="\n".join(texts) + "\n")
    rows = []
    for line in out.splitlines():
        by_label = {entry["label"]: entry["probability"] for entry in json.loads(line)["top"]}
        rows.append([by_label[label] for label in labels])
    return torch.tensor(rows, dtype=torch.float64)


def by_the_card(folder, texts):
    """Run the Python code of folder's README.md in that folder on these texts, and return its variables."""
    code, = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)
    code, replaced = re.subn(r"^texts = .*$", lambda _: "texts = " + repr(texts), code, flags=re.M)
    if replaced != 1:
        raise RuntimeError(f"{folder}/README.md has {replaced} lines of texts")
    scope, printed = {"__name__": "card"}, io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        exec(compile(code, str(folder / "README.md"), "exec"), scope)
    scope["printed"] = printed.getvalue().splitlines()
    return scope


def compare(name, logits, probs):
    """Compare logits of transformers with probabilities of rltrain, which determine logits up to a constant per row."""
    wanted = torch.log_softmax(logits.double(), -1)
    in_logs = (wanted - probs.log()).abs().max().item()
    plain = (wanted.exp() - probs).abs().max().item()
    check(name, in_logs <= LIMIT and plain <= LIMIT, f"log-probabilities differ by {in_logs:.1e}, probabilities by {plain:.1e}")


SHAPE = dict(vocab_size=61, hidden_size=36, num_hidden_layers=3, num_attention_heads=3, intermediate_size=50, max_position_embeddings=48)
ENCODERS = {  # by family: a configuration, and the prefix of its class names in transformers
    "bert": (BertConfig(**SHAPE, layer_norm_eps=1e-5), "Bert"),
    "roberta": (RobertaConfig(**{**SHAPE, "max_position_embeddings": 50}, type_vocab_size=1, pad_token_id=0), "Roberta"),
    "distilbert": (DistilBertConfig(vocab_size=61, dim=36, n_layers=3, n_heads=3, hidden_dim=50, max_position_embeddings=48), "DistilBert"),
    "modernbert": (ModernBertConfig(**SHAPE, pad_token_id=0, local_attention=8, global_attn_every_n_layers=2), "ModernBert"),
}


def random_encoder(folder, family):
    """Save a small encoder like a pretrained one: tensor names with the family's prefix, and with pretraining heads."""
    torch.manual_seed(3)
    config, _ = ENCODERS[family]
    model = BertForPreTraining(config) if family == "bert" else AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():  # biases of 0 and scales of 1 would hide a missing term
        for name, p in model.named_parameters():
            p.copy_((1 if p.dim() == 1 and name.endswith("weight") else 0) + 0.15 * torch.randn(p.shape))
    model.save_pretrained(folder)
    words = ROOT / "torch" / "transformers" / "tokenizer" / "testdata" / "wordpiece"
    shutil.copy(words / "tokenizer.json", folder)
    settings = json.loads((words / "tokenizer_config.json").read_text())
    if family != "bert":
        settings.update(tokenizer_class="PreTrainedTokenizerFast", model_input_names=["input_ids", "attention_mask"])
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def random_rows(path):
    """Write rows of words of the small tokenizer, with labels that need quoting."""
    labels = {'say "cat", dog': ["cat", "dog"], "law/force": ["law", "force"], "où ça": ["where", "what"]}
    others = "the of is a and un happiness running café 東京 zzz".split()
    draw = random.Random(5)
    with open(path, "w", encoding="utf-8") as f:
        for i in range(90):
            label = list(labels)[i % 3]
            words = [draw.choice(labels[label])] + draw.choices(others, k=draw.randrange(2, 9))
            draw.shuffle(words)
            f.write(json.dumps({"text": " ".join(words), "label": label}, ensure_ascii=False) + "\n")


def built_in_texts():
    """Return the first questions of every category of the built-in data set."""
    texts = []
    for path in sorted((ROOT / "envs" / "intent" / "data").glob("*.jsonl")):
        texts += [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()[:3]]
    return texts


def check_tokenizer(name, folder, base, texts, max_length):
    ours, theirs = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(base)
    same = all(ours(t, truncation=True, max_length=max_length, padding=False)["input_ids"]
               == theirs(t, truncation=True, max_length=max_length, padding=False)["input_ids"] for t in texts)
    check(name, same, f"{len(texts)} texts")


def check_classifier(name, folder, base, pooling, texts):
    """Check everything that is documented about a trained folder."""
    labels = [label for _, label in sorted(json.loads((folder / "category_mapping.json").read_text())["idx_to_category"].items(), key=lambda kv: int(kv[0]))]
    max_length = json.loads((folder / "label_policy.json").read_text())["max_length"]
    probs = predicted(folder, texts, labels)

    with attempt(f"{name}: README.md's code"):
        card = by_the_card(folder, texts)
        kind = type(card["model"].base_model.model).__name__
        prefix = ENCODERS[card["model"].config.model_type][1]
        check(f"{name}: README.md's code loads PEFT on {kind}", kind == prefix + ("Model" if pooling == "mean" else "ForSequenceClassification"))
        compare(f"{name}: README.md's code = rltrain predict, {len(texts)} texts", card["logits"], probs)
        answers = [labels[i] for i in probs.argmax(1)]
        check(f"{name}: README.md's code prints rltrain's predictions", [line.split(" 0.")[0].split(" 1.0")[0] for line in card["printed"]] == answers)
    with attempt(f"{name}: tokenizer"):
        check_tokenizer(f"{name}: AutoTokenizer on the folder = on the base model", folder, base, texts, max_length)
    with attempt(f"{name}: adapter"):
        loads_in_peft(f"{name}: the adapter in PEFT", load_base(base, pooling, labels), folder)
    for checkpoint in sorted((folder / "checkpoints").iterdir()):
        with attempt(f"{name}: {checkpoint.name}"):
            loads_in_peft(f"{name}: {checkpoint.name} in PEFT", load_base(base, pooling, labels), checkpoint)

    merged = folder.parent / (folder.name + "_merged")
    with attempt(f"{name}: merged"):
        rltrain("merge", "--model", folder, "--output", merged)
        compare(f"{name}: merged, rltrain predict = rltrain predict of the adapter", predicted(merged, texts, labels).log(), probs)
        card = by_the_card(merged, texts)
        compare(f"{name}: merged, README.md's code = rltrain predict", card["logits"], probs)
        id2label = {i: label for i, label in enumerate(labels)}
        if pooling == "family":
            model, info = AutoModelForSequenceClassification.from_pretrained(merged, output_loading_info=True)
        else:
            model, info = AutoModel.from_pretrained(merged, output_loading_info=True)
        check(f"{name}: merged, {type(model).__name__} has id2label", model.config.id2label == id2label)
        # Mean pooling does not use the pooler, so it is in the file only if the base model has it.
        lost = [k for k in (*info["missing_keys"], *info["unexpected_keys"]) if not (pooling == "mean" and k.startswith("pooler."))]
        check(f"{name}: merged, no tensor is missing or unexpected", not lost, ", ".join(lost))


def check_heads(scratch):
    """Check classifiers that rltrain trains on language models, with a head on the last token's state."""
    rows = scratch / "letters.jsonl"
    with open(rows, "w", encoding="utf-8") as f:
        for i in range(90):
            f.write(json.dumps({"text": f"{'adg'[i % 3]} {chr(97 + i % 26)}{chr(97 + i * 7 % 26)}", "label": ["low", 'so "so"', "high"][i % 3]}) + "\n")
    texts = ["cat", "g", "d1,2and3?", "x" * 30]  # no spaces: transformers' Qwen2Tokenizer encodes them differently from the tiny model
    for family in FAMILIES:
        name, base = f"{family}, a head on the last token", scratch / "bases" / family
        with attempt(name):
            output = scratch / "heads" / family
            rltrain("--task", "text", "--policy", "head", "--mode", "supervised", "--model", base, "--dataset", rows, "--max-length", 40,
                    "--epochs", 1, "--learning-rate", "1e-2", "--threads", 1, "--output-dir", output)
            folder, = output.glob("classification_supervised_*")
            labels = list(json.loads((folder / "category_mapping.json").read_text())["category_to_idx"])
            card = by_the_card(folder, texts)
            kind = type(card["model"].base_model.model).__name__
            check(f"{name}: README.md's code loads PEFT on {kind}", kind.endswith("ForSequenceClassification"))
            compare(f"{name}: README.md's code = rltrain predict", card["logits"], predicted(folder, texts, labels))
            loads_in_peft(f"{name}: the adapter in PEFT", load_base(base, "family", labels), folder)


def load_base(base, pooling, labels):
    if pooling == "mean":
        return AutoModel.from_pretrained(base)
    return AutoModelForSequenceClassification.from_pretrained(base, num_labels=len(labels))


def go(command, **environment):
    """Return the output of a go command, run in the environment of the tests."""
    done = subprocess.run(["bash", "-euc", f'env="$(scripts/setup/env.sh)"; eval "$env"; {command}'], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, **{k: str(v) for k, v in environment.items()}})
    if done.returncode != 0 or "no tests to run" in done.stdout:
        raise RuntimeError(f"{command}: {(done.stdout + done.stderr).strip()[:2000]}")
    return done.stdout


def write_cases(path, rows):
    count = 0
    with open(path, "w", encoding="utf-8") as f:
        for count, row in enumerate(rows, 1):
            f.write(json.dumps(row) + "\n")
    return count


def check_chat_templates(scratch):
    """Check every chat template of TRL with every conversation."""
    folder = pathlib.Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
    templates = sorted(folder.glob("*.jinja"))
    path = scratch / "chats.jsonl"
    count = write_cases(path, (case for t in templates for case in cases.chat_cases(t.stem, t.read_text(encoding="utf-8"))))
    go("go test -count=1 -run TestRenderAsTransformers ./torch/transformers/chat", RLTRAIN_CHAT_CASES=path)
    check("chat templates of TRL", templates, f"{len(templates)} templates, {count} conversations")


def same_tokens(path, rows):
    """Compare rltrain's tokens with those of cases, and return their number."""
    count = write_cases(path, rows)
    go("go test -count=1 -run TestTokenizerAsTransformers ./torch/transformers/tokenizer", RLTRAIN_TOKENIZER_CASES=path)
    return count


def check_tokenizers(scratch):
    """Check the tokenizer.json files of the Go module: ids, spans and decoding of 1,000 mixed strings, and decoding of
    random ids."""
    data = pathlib.Path(go("go list -m -f '{{.Dir}}' github.com/daulet/tokenizers").strip()) / "test" / "data"
    configs = {"Meta-Llama-3-8B-Instruct": json.loads((data / "meta-llama-3-8b-instruct" / "tokenizer_config.json").read_text())}
    words = sorted(set((data / "long_text.txt").read_text(encoding="utf-8").split()))
    rows, named = [], []
    for source in sorted(data.glob("*.json")):
        file = json.loads(source.read_text(encoding="utf-8"))
        if len(file["model"]["vocab"]) < 1000:
            continue  # reduced to a few tokens, without its unknown token
        folder = scratch / "tokenizers" / source.stem
        folder.mkdir(parents=True)
        shutil.copyfile(source, folder / "tokenizer.json")
        config = {**configs.get(source.stem, {}), "tokenizer_class": "TokenizersBackend"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if isinstance(tokenizer.backend_tokenizer.post_processor, processors.ByteLevel):
            tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)  # as in rltrain; ids do not change
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
        texts = list(cases.mixed_texts(1000, words)) + ODD_TEXTS
        rows += [cases.token_case(tokenizer, str(folder), text) for text in texts]
        draw = random.Random(1)
        fine = [i for t, i in tokenizer.get_vocab().items() if "Ā" not in t and t != "<0x00>"]  # no NUL
        fine.sort()
        rows += [cases.ids_case(tokenizer, str(folder), draw.choices(fine, k=draw.randrange(1, 60))) for _ in range(200)]
        named.append(source.stem)
    count = same_tokens(scratch / "tokenizers.jsonl", rows)
    check("tokenizers of the Go module", len(named) > 1, f"{', '.join(named)}: {count} cases")


def check_llama_tokenizers(scratch):
    """Check Llama tokenizers, for each class and model type that changes how transformers encodes the start of a text."""
    data = pathlib.Path(go("go list -m -f '{{.Dir}}' github.com/daulet/tokenizers").strip()) / "test" / "data"
    count = same_tokens(scratch / "llama-tokenizers.jsonl", llama_cases(scratch, (data / "long_text.txt").read_text(encoding="utf-8")))
    check("Llama tokenizers", count >= 1800, f"{count} cases")


def check_family_tokenizers(scratch):
    """Check the tokenizers of transformers' families, trained on the documentation."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
    count = same_tokens(scratch / "family-tokenizers.jsonl", family_cases(scratch, text))
    check("tokenizers of families", count >= 5000, f"{count} cases")


def short_texts():
    return [text for text in cases.mixed_texts(300, "the law of force is that a body at rest".split()) if text.strip() and len(text) < 30]


def check_sft(scratch):
    """Check token ids, labels and loss of data sets against TRL's SFTTrainer."""
    path = scratch / "sft.jsonl"
    count = write_cases(path, sft_cases(scratch, short_texts()))
    go("go test -count=1 -run TestEncodeAsTRL ./rl/policy", RLTRAIN_SFT_CASES=path)
    check("ids, labels and loss of TRL's SFTTrainer", count > 50, f"{count} data sets")


class Hub(http.server.BaseHTTPRequestHandler):
    """A Hub with one repository: the files of the folder `served`. `log` records the requests for files."""
    served, log, commit = None, [], "0123456789abcdef0123456789abcdef01234567"
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def files(self):
        """Yield for each file its name, bytes, git SHA-1 and ETag (for a large file its SHA-256)."""
        for path in sorted(self.served.iterdir()):
            data = path.read_bytes()
            git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            yield path.name, data, git, hashlib.sha256(data).hexdigest() if path.suffix == ".safetensors" else git

    def answer(self, status, data, headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(data), "X-Repo-Commit": self.commit, **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def do_GET(self):
        path = self.path.partition("?")[0]
        repo, _, name = path.partition("/resolve/")
        name = name.partition("/")[2]
        if path in ("/api/models/org/tiny-bert", "/api/models/org/tiny-bert/revision/main"):
            siblings = [{"rfilename": name, "size": len(data), "blobId": git} for name, data, git, _ in self.files()]
            return self.answer(200, json.dumps({"id": "org/tiny-bert", "sha": self.commit, "siblings": siblings}).encode(), {})
        if repo == "/org/tiny-bert" and name:
            self.log.append((self.command, name))
            for other, data, _, etag in self.files():
                if other == name:
                    return self.answer(200, data, {"ETag": f'"{etag}"'})
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        # Python also asks for files that do not exist, such as the tree of additional_chat_templates.
        return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET

    @classmethod
    def taken(cls):
        """Return the files sent since the last call."""
        sent, cls.log = [name for command, name in cls.log if command == "GET"], []
        return sent


# Loads the Hub's model by name and prints what huggingface_hub finds in the cache.
LOAD = """
import json, os, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=DeprecationWarning)
from huggingface_hub import _CACHED_NO_EXIST, scan_cache_dir, snapshot_download, try_to_load_from_cache
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained("org/tiny-bert")
tokenizer = AutoTokenizer.from_pretrained("org/tiny-bert")
scan = scan_cache_dir()
repo, = scan.repos
snapshot = snapshot_download("org/tiny-bert", local_files_only=True)
print(json.dumps({
    "sum": sum(p.double().sum().item() for p in model.parameters()), "ids": tokenizer("what is the law of force?")["input_ids"],
    "warnings": [str(w) for w in scan.warnings], "refs": list(repo.refs), "files": sorted(f.file_name for r in repo.revisions for f in r.files),
    "snapshot": sorted(os.listdir(snapshot)), "absent": try_to_load_from_cache("org/tiny-bert", "chat_template.jinja") is _CACHED_NO_EXIST,
}))
"""


def check_hub(scratch, tiny):
    """Let both sides fetch tiny from a Hub by name, each into its cache, and then read the other's cache."""
    Hub.served = tiny
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))}

    def env(cache, offline):
        return clean | {"HF_HOME": str(scratch / cache), "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": str(int(offline))}

    def load(cache, offline):
        done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, encoding="utf-8", env=env(cache, offline))
        if done.returncode != 0:
            raise RuntimeError(f"Python, {cache}: {done.stderr.strip().splitlines()[-1]}")
        return json.loads(done.stdout)

    def train(cache, offline):
        output = scratch / f"{cache}-{'offline' if offline else 'online'}"
        rltrain("--model", "org/tiny-bert", "--dataset", scratch / "rows.jsonl", "--mode", "supervised", "--max-steps", 1, "--output-dir", output,
                env=env(cache, offline))
        return json.loads((output / "intent_classifier_supervised" / "adapter_config.json").read_text())["base_model_name_or_path"]

    needed = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    with attempt("hub: the cache of rltrain"):
        check("hub: rltrain trains on a model from the Hub, and the adapter names it", train("ours", False) == "org/tiny-bert")
        sent = Hub.taken()
        check("hub: rltrain fetches each file once", sorted(sent) == needed, ", ".join(sent))
        ours = load("ours", True)
        check("hub: Python reads the cache of rltrain offline", ours["files"] == needed and ours["refs"] == ["main"] and not ours["warnings"], str(ours["warnings"] or ours["files"]))
        check("hub: snapshot_download finds the same files without the network", ours["snapshot"] == needed, str(ours["snapshot"]))
        check("hub: Python reads from it which files the repository lacks", ours["absent"])
        load("ours", False)
        sent = Hub.taken()
        check("hub: Python fetches nothing again", not sent, ", ".join(sent))
    with attempt("hub: the cache of Python"):
        theirs = load("theirs", False)
        Hub.taken()
        check("hub: both caches give the same model and tokenizer", (theirs["sum"], theirs["ids"]) == (ours["sum"], ours["ids"]))
        check("hub: rltrain reads the cache of Python offline", train("theirs", True) == "org/tiny-bert")
        train("theirs", False)
        sent = Hub.taken()
        check("hub: rltrain fetches nothing again", not sent, ", ".join(sent))
    server.shutdown()
    server.server_close()


def main():
    logging.set_verbosity_error()  # no reports of new classification heads, which checks cover
    logging.disable_progress_bar()
    sys.unraisablehook = unraisable
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*is_gradient_checkpointing.*")
    minilm = CACHE / "models" / DEFAULT_MODEL
    if not (minilm / "config.json").exists():
        sys.exit(f"{minilm} has no model: run `make models`")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        with attempt("chat templates of TRL"):
            check_chat_templates(scratch)
        with attempt("tokenizers of the Go module"):
            check_tokenizers(scratch)
        with attempt("Llama tokenizers"):
            check_llama_tokenizers(scratch)
        with attempt("tokenizers of families"):
            check_family_tokenizers(scratch)
        with attempt("data sets of TRL's SFTTrainer"):
            check_sft(scratch)
        with attempt("preferences against TRL's trainers"):
            check_preferences(scratch, short_texts())
        with attempt("language models"):
            check_language_models(scratch)
        with attempt("heads on language models"):
            check_heads(scratch)
        with attempt("trackers"):
            check_trackers(scratch / "trackers")
        for family in ENCODERS:
            random_encoder(scratch / f"tiny-{family}", family)
        random_rows(scratch / "rows.jsonl")
        small = "the law of force|what is the cat|where is the dog?|un happiness|running , 東京 !|café zzz".split("|")
        runs = [  # model, its arguments, texts, the stages to check
            (minilm, ["--max-samples", 56, "--epochs", 1, "--learning-rate", "5e-3", "--rl-episodes", 1, "--update-epochs", 1,
                      "--rl-learning-rate", "1e-3"], built_in_texts() + ODD_TEXTS, ["rl"]),
            *((scratch / f"tiny-{family}", ["--dataset", scratch / "rows.jsonl", "--learning-rate", "1e-2", "--rl-episodes", 2, "--rl-learning-rate", "5e-3",
                                            "--reward", "calibration"], small + ODD_TEXTS, ["supervised", "rl"]) for family in ENCODERS),
        ]
        check_hub(scratch, scratch / "tiny-bert")
        for model, args, texts, stages in runs:
            for pooling in ["mean", "family"]:
                output = scratch / f"{model.name}-{pooling}"
                with attempt(f"{output.name}: training"):
                    rltrain("--model", model, "--pooling", pooling, "--output-dir", output, "--save-steps", 4, "--save-total-limit", 1, *args)
                    for stage in stages:
                        check_classifier(f"{output.name} {stage}", output / f"intent_classifier_{stage}", model, pooling, texts)
    print(f"{results['passed']} passed, {results['failed']} failed")
    sys.exit(results["failed"] > 0)


main()
