"""Gemma 4's tokenizer with a small vocabulary: the class, special tokens and settings that transformers' conversion of
the published models uses (BPE over text without splitting, bytes for unknown characters, no <bos> before a text). Used
by family_tokenizers.py and fixtures/causal_tokenizers.py."""
import json

from tokenizers import AddedToken, Tokenizer, models, normalizers, trainers
from transformers import GemmaTokenizer

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
NAMED = {
    "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>", "audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>",
    "sot_token": "<|turn>", "eot_token": "<turn|>", "soc_token": "<|channel>", "eoc_token": "<channel|>", "think_token": "<|think|>", "escape_token": '<|"|>',
    "str_token": "<|tool_response>", "etr_token": "<tool_response|>", "stc_token": "<|tool_call>", "etc_token": "<tool_call|>", "std_token": "<|tool>", "etd_token": "<tool|>",
}
SYMBOLS = ["\n\n", "▁▁▁▁", "<table>"]  # pieces that no merge makes, as SentencePiece's user-defined symbols
ENDS = ["<eos>", "<turn|>", "<|tool_response>"]  # eos_token_id of generation_config.json


def gemma4(corpus, size):
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained.normalizer = normalizers.Replace(" ", "▁")
    first = SPECIAL + [f"<0x{i:02X}>" for i in range(256)] + list(NAMED.values()) + SYMBOLS
    trained.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=first, max_token_length=12))
    model = json.loads(trained.to_str())["model"]
    tokenizer = GemmaTokenizer(vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]], add_bos_token=False, padding_side="left", extra_special_tokens=NAMED)
    tokenizer.add_tokens([AddedToken(symbol, normalized=False) for symbol in SYMBOLS])
    return tokenizer
