"""Writes wordpiece/: a small BERT tokenizer and, in encode.json, what transformers makes of texts.

Made with transformers 5.23.0. Run from this folder: python make_wordpiece.py
"""
import json

from transformers import AutoTokenizer

WORDS = "the law of force is a cat and dog what where ? ! . , ' un ##happi ##ness ##s ##ed e ##f é caf 東 京 run ##ning"
CASES = [
    ("", 8), (" \t\n", 8), ("The law of force.", 16), ("the law of force.", 7), ("the law of force.", 6),
    ("the law of force.", 3), ("unhappiness", 16), ("unhappiness", 4), ("Café CAFE\u0301", 16), ("東京 cat", 16),
    ("zzz cat zzz", 16), ("what is [SEP] law [MASK]?", 16), ("[CLS] the cat [SEP]", 5), ("dogs! running, 'the' cats", 16),
    ("a" * 101 + " cat", 16), ("the\u200bcat\x07 a", 16), ("x" * 1000, 8), ("the cat " * 200, 128),
]

tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + WORDS.split()
special = [
    {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for i, t in enumerate(tokens[:5])
]
cls, sep = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}
with open("wordpiece/tokenizer.json", "w") as f:
    json.dump({
        "version": "1.0",
        # Shorter than the texts: who does not drop these gets other ids.
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 6}, "direction": "Right", "pad_to_multiple_of": None,
                    "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": [cls, {"Sequence": {"id": "A", "type_id": 0}}, sep],
                           "pair": [cls, {"Sequence": {"id": "A", "type_id": 0}}, sep, {"Sequence": {"id": "B", "type_id": 1}}, sep],
                           "special_tokens": {t: {"id": t, "ids": [tokens.index(t)], "tokens": [t]} for t in ("[CLS]", "[SEP]")}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {t: i for i, t in enumerate(tokens)}},
    }, f, ensure_ascii=False, indent=1)
    f.write("\n")
with open("wordpiece/tokenizer_config.json", "w") as f:
    json.dump({"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512, "unk_token": "[UNK]",
               "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}, f, indent=1)
    f.write("\n")

out = []
for side in ("right", "left"):
    tok = AutoTokenizer.from_pretrained("wordpiece", truncation_side=side)
    for text, n in CASES:
        out.append({"text": text, "max_length": n, "side": side, "full": len(tok(text, truncation=False, padding=False)["input_ids"]),
                    "ids": tok(text, truncation=True, max_length=n, padding=False)["input_ids"]})
with open("wordpiece/encode.json", "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(o, ensure_ascii=True) for o in out) + "\n]\n")
