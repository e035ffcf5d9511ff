"""Tokenizers of the families of language models and encoders in transformers: part of compat.py."""
import importlib.util
import pathlib
import random

import cases
import transformers
from gemma4_tokenizer import gemma4
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXTS = 300
VOCABULARY = 1500
CLASSES = ["AlbertTokenizer", "BertTokenizer", "CamembertTokenizer", "CohereTokenizer", "DebertaV2Tokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer",
           "GemmaTokenizer", "LlamaTokenizer", "MPNetTokenizer", "Qwen2Tokenizer", "Qwen3_5Tokenizer", "RobertaTokenizer", "XLMRobertaTokenizer"]
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
ENDS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
UPPER, LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# Byte-level BPE by the pattern that a text is split with first, as published folders of these families have it.
PATTERNS = {
    "llama3": CONTRACTED + LETTERS + r"|\p{N}{1,3}" + ENDS,  # also smollm3, glm4, olmo2, olmo3, stablelm
    "o200k": rf"{UPPER}*{LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|{UPPER}+{LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
             r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",  # gpt_oss
    "tekken": rf"{UPPER}*{LOWER}+|{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",  # mistral of 2024 on
    "digits": None,  # smollm2, starcoder2, granite
}


def byte_level(pattern, corpus):
    t = Tokenizer(models.BPE())
    first = pre_tokenizers.Split(Regex(pattern), "isolated") if pattern else pre_tokenizers.Digits(individual_digits=True)
    t.pre_tokenizer = pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                      special_tokens=["<|begin|>", "<|end|>"]))
    t.post_processor = processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B", special_tokens=[("<|begin|>", 0)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<|begin|>", eos_token="<|end|>", pad_token="<|end|>")


def tokenizers(corpus):
    """Yield a trained tokenizer of each class and pattern, by name."""
    for name in CLASSES:
        yield name, getattr(transformers, name)().train_new_from_iterator(corpus, VOCABULARY)
    for name, pattern in PATTERNS.items():
        yield name, byte_level(pattern, corpus)
    yield "gemma4", gemma4(corpus, VOCABULARY)


def gemma4_talks(tokenizer):
    """Yield conversations in Gemma 4's published chat template, with tools and thoughts."""
    template = (pathlib.Path(importlib.util.find_spec("trl").origin).parent / "chat_templates" / "gemma4_v5.jinja").read_text(encoding="utf-8")
    tools = [cases.tool("weather", {"city": {"type": "string", "enum": ["Paris", "東京"]}}, ["city"])]
    for messages in cases.conversations().values():
        messages = [{k: v for k, v in m.items() if v is not None} for m in messages]
        for given, thinking in [(None, False), (tools, True)]:
            yield tokenizer.apply_chat_template(messages, chat_template=template, tools=given, enable_thinking=thinking, add_generation_prompt=thinking, tokenize=False)


def family_cases(scratch, text):
    """Yield ids, spans and decoding of 300 strings with each tokenizer; a third contain special tokens."""
    words, draw = sorted(set(text.split())), random.Random(6)
    texts = list(cases.mixed_texts(TEXTS, words))
    for name, tokenizer in tokenizers(text.splitlines()):
        folder = scratch / "family-tokenizers" / name
        tokenizer.save_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        trimmed = isinstance(tokenizer.backend_tokenizer.post_processor, (processors.ByteLevel, processors.RobertaProcessing))
        if name == "gemma4":
            yield from (cases.token_case(tokenizer, str(folder), talk) for talk in gemma4_talks(tokenizer))
        special = sorted(tokenizer.all_special_tokens)
        for i, one in enumerate(texts):
            if i % 3 == 0:
                one = draw.choice(special) + one + draw.choice(special) + "\n" + draw.choice(texts)
            case = cases.token_case(tokenizer, str(folder), one)
            # In rltrain the spaces before a token belong to it.
            yield case | {"spans": None} if trimmed or "<mask>" in special else case
