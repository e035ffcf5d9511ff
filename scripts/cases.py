"""Expected results of transformers for chat templates, conversations and texts, as cases for the Go tests. Used by
scripts/fixtures and compat.py."""
import datetime
import random

from transformers.utils import chat_template_utils

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class Clock(datetime.datetime):
    """A fixed clock for strftime_now in all cases."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 4, 5, 6, 7)


chat_template_utils.datetime = Clock


def byte_spans(text, spans):
    return [[len(text[:start].encode()), len(text[:end].encode())] for start, end in spans]


def render(template, messages, tools, documents, prompt, variables):
    """Return the text and generation spans of a conversation, as apply_chat_template gives them, or None and the error."""
    messages = [{k: v for k, v in m.items() if v is not None} for m in messages]
    try:
        texts, spans = chat_template_utils.render_jinja_template(
            [messages], tools=tools, documents=documents, chat_template=template, return_assistant_tokens_mask=True,
            add_generation_prompt=prompt, **variables)
    except Exception as e:
        return {"text": None, "generated": [], "why": f"{type(e).__name__}: {e}"}
    return {"text": texts[0], "generated": byte_spans(texts[0], spans[0])}


def chat_case(name, template, messages, tools=None, documents=None, prompt=False, variables={}):
    return {"name": name, "template": template, "messages": messages, "tools": tools, "documents": documents,
            "add_generation_prompt": prompt, "special": SPECIAL, "variables": variables,
            **render(template, messages, tools, documents, prompt, {**SPECIAL, **variables})}


def tool(name, properties, required):
    return {"type": "function", "function": {"name": name, "description": f"Finds the <b>{name}</b> & ünïcode", "parameters":
                                             {"type": "object", "properties": properties, "required": required}}}


def conversations():
    """Return conversations, by name, that cover every structure that templates distinguish."""
    user, assistant = {"role": "user", "content": "Hi <there> 'é'\n"}, {"role": "assistant", "content": " Hello!\n"}
    system = {"role": "system", "content": "Be brief."}
    calls = [{"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": {
        "city": "Paris", "days": 2, "nested": {"z": 1, "a": [1.5, None, True, 'x"y\n']}}}}]
    answer = {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": '{"temp": 21}'}
    return {
        "user": [user], "system": [system, user], "turns": [system, user, assistant, {"role": "user", "content": "  More?"}, {"role": "assistant", "content": "Yes."}],
        "tools": [user, {"role": "assistant", "content": None, "tool_calls": calls}, answer, {"role": "assistant", "content": "21 degrees"}],
        "many tools": [system, user, {"role": "assistant", "content": "Let me see.", "tool_calls": calls * 2}, answer, answer, {"role": "assistant", "content": "21"}, user],
        "thought": [user, {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nAnswer"}, {"role": "user", "content": "again"},
                    {"role": "assistant", "content": "A2", "reasoning_content": "deep thought"}],
        "older thought": [user, {"role": "assistant", "thinking": "older name", "content": "A2"}],
        "parts": [{"role": "system", "content": [{"type": "text", "text": "sys"}]},
                  {"role": "user", "content": [{"type": "text", "text": "look "}, {"type": "image"}, {"type": "text", "text": "there"}]},
                  {"role": "assistant", "content": [{"type": "text", "text": "seen"}]}],
        "empty": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
        "assistant first": [assistant, user], "unknown role": [{"role": "ipython", "content": "x"}],
        "developer": [{"role": "developer", "content": "dev"}, user],
    }


def chat_cases(name, template):
    """Yield a template with every conversation, with and without tools, documents and reasoning variables."""
    tools = [tool("weather", {"city": {"type": "string", "enum": ["Paris", "東京"]}, "days": {"type": ["integer", "null"], "default": 3}}, ["city"]), tool("noop", {}, [])]
    for kind, messages in conversations().items():
        for i, variables in enumerate([{}, {"enable_thinking": False}, {"enable_thinking": True, "reasoning_effort": "high"}]):
            for given in [None, tools] if i == 0 else [tools if "tools" in kind else None]:
                documents = [{"title": "T", "text": "doc"}] if i == 2 else None
                yield chat_case(f"{name}, {kind}, {i}{', tools' if given else ''}", template, messages, given, documents, i != 1, variables)


def token_case(tokenizer, folder, text):
    """Encode a text without and with special tokens, and decode it again."""
    plain = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = tokenizer(text, add_special_tokens=True)["input_ids"]
    return {"dir": folder, "text": text, "ids": plain["input_ids"], "special": ids, "spans": byte_spans(text, plain["offset_mapping"]), **decoded(tokenizer, ids)}


def decoded(tokenizer, ids):
    return {"decoded": tokenizer.decode(ids, clean_up_tokenization_spaces=False),
            "skipped": tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)}


def ids_case(tokenizer, folder, ids):
    """Decode ids that no text encodes to."""
    return {"dir": folder, "text": None, "special": ids, **decoded(tokenizer, ids)}


def mixed_texts(n, words):
    """Yield texts that mix words, numbers, scripts, white space and symbols."""
    draw = random.Random(9)
    scripts = ["naïve café Ångström", "東京は日本の首都です", "Привет, мир", "مرحبا بالعالم", "नमस्ते", "👩‍👩‍👧 🧪🔬", "e\u0301a\u030a", "ﬁ ½ Ⅷ", "\u200b\u00ad\ufeff"]
    spaces, symbols = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "   \n "], ["!?", "...", "{}[]()", "<|x|>", "=>", "don't", "I'LL", "#include <a>", "\\n", "$1,000.50", "∫²", "_a_", "--"]
    for i in range(n):
        parts = []
        for _ in range(draw.randrange(0, 1 + i % 23)):
            pick = draw.random()
            parts.append(draw.choice(words) if pick < 0.45 else draw.choice(scripts) if pick < 0.6 else str(draw.randrange(10 ** draw.randrange(1, 9)))
                         if pick < 0.7 else draw.choice(symbols) if pick < 0.85 else chr(draw.randrange(0x20, 0xd7ff)))
            parts.append(draw.choice(spaces) if draw.random() < 0.7 else "")
        yield "".join(parts)
