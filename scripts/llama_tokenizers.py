"""Llama tokenizers (BPE with byte fallback) in transformers: part of compat.py."""
import json
import random

import cases
from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers
from transformers import AutoTokenizer

TEXTS = 300
SPECIAL = ["<unk>", "<s>", "</s>"]


def pieces(corpus):
    """Return the tokenizer.json of a vocabulary trained on corpus, in which a normalizer inserts "▁", as in older folders."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    byte_tokens = [f"<0x{i:02X}>" for i in range(256)]
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=1500, show_progress=False, special_tokens=SPECIAL + byte_tokens, max_token_length=12))
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    file = json.loads(t.to_str())
    file["added_tokens"] = [token for token in file["added_tokens"] if token["content"] in SPECIAL]
    return file


def folders(scratch, corpus):
    file = pieces(corpus)
    common = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 4096}
    for name, model, config in [
        ("llama", "llama", {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True, "add_eos_token": False}),
        ("llama-fast", "llama", {"tokenizer_class": "LlamaTokenizerFast"}),
        ("llama-legacy", "llama", {"tokenizer_class": "LlamaTokenizer", "legacy": True}),
        ("mistral", "mistral", {"tokenizer_class": "LlamaTokenizer", "legacy": False}),
        ("phi3", "phi3", {"tokenizer_class": "LlamaTokenizerFast", "legacy": False}),
        ("other", "llama", {"tokenizer_class": "PreTrainedTokenizerFast"}),
    ]:
        folder = scratch / "llama-tokenizers" / name
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text(json.dumps(file))
        (folder / "tokenizer_config.json").write_text(json.dumps(common | config))
        (folder / "config.json").write_text(json.dumps({"model_type": model}))
        yield folder


def llama_cases(scratch, text):
    """Yield ids, spans and decoding of 300 strings; a third contain special tokens as in conversations."""
    words, draw = sorted(set(text.split())), random.Random(6)
    texts = list(cases.mixed_texts(TEXTS, words))
    for i in range(0, TEXTS, 3):
        texts[i] = draw.choice(["<s>[INST] {} [/INST] {}</s>", "<s>{}</s>\n{}", "{}</s> {}<s>", "</s>\n{}\n</s>{}"]).format(texts[i], draw.choice(texts))
    for folder in folders(scratch, text.splitlines()):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for one in texts:
            yield cases.token_case(tokenizer, str(folder), one)
