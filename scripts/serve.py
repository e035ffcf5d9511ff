"""Check `rltrain serve` with OpenAI's Python client. Run by `make compat`; rltrain itself needs no Python.

Trains a tiny model for a few updates, then serves it with an adapter. Requests completions, conversations, streams and models
as users of the client do, and sends requests that the server must refuse.
"""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

os.environ.pop("RLTRAIN_PYTHON", None)  # rltrain does not know this setting

import openai  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("RLTRAIN", str(ROOT / "bin" / "rltrain"))
KEY = "a-key"
results = {"passed": 0, "failed": 0}


def check(name, good, detail=""):
    results["passed" if good else "failed"] += 1
    print(f"{'ok  ' if good else 'FAIL'} {name}{': ' if detail else ''}{detail}", flush=True)


def refused(name, kind, ask, words):
    try:
        ask()
    except kind as e:
        check(name, words in str(e), "" if words in str(e) else str(e))
    except Exception as e:
        check(name, False, f"{type(e).__name__}: {e}")
    else:
        check(name, False, "the server accepted it")


def train(output, *args):
    subprocess.run([BINARY, "--task", "chat", "--output-dir", output, "--max-steps", "2", *map(str, args)], check=True, capture_output=True)
    return output / "chat_supervised"


@contextlib.contextmanager
def serving(*args):
    """Start a server and yield its URL; stop it at the end."""
    server = subprocess.Popen([BINARY, "serve", "--port", "0", "--api-key", KEY, *map(str, args)], stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if found := re.search(r" at (http://\S+)", line):
                yield found[1]
                break
        else:
            raise RuntimeError("the server did not start")
    finally:
        server.terminate()
        check("it stops on SIGTERM", server.wait(60) == 143)


def completions(client):
    full = client.completions.create(model="tiny", prompt=["1+2=", "3+4="], n=2, max_tokens=8, seed=7, logprobs=0)
    check("completions", [c.index for c in full.choices] == [0, 1, 2, 3] and full.usage.completion_tokens > 0 and full.object == "text_completion")
    check("log-probabilities", all(len(c.logprobs.tokens) == len(c.logprobs.token_logprobs) and max(c.logprobs.token_logprobs) <= 0 for c in full.choices))
    again = client.completions.create(model="tiny", prompt=["1+2=", "3+4="], n=2, max_tokens=8, seed=7)
    check("a seed repeats", [c.text for c in again.choices] == [c.text for c in full.choices])
    ids = client.completions.create(model="tiny", prompt=[[5, 6, 7]], max_tokens=4, temperature=0, extra_body={"return_token_ids": True, "top_k": 1, "stop_token_ids": [9]})
    check("token ids", ids.choices[0].prompt_token_ids == [5, 6, 7] and 0 < len(ids.choices[0].token_ids) <= 4)
    texts, last = [""] * 4, None
    for piece in client.completions.create(model="tiny", prompt=["1+2=", "3+4="], n=2, max_tokens=8, seed=7, stream=True, stream_options={"include_usage": True}):
        for c in piece.choices:
            texts[c.index] += c.text
        last = piece
    check("a stream gives the same texts", texts == [c.text for c in full.choices], repr(texts))
    check("a stream ends with its usage", last.usage.completion_tokens == full.usage.completion_tokens and last.choices == [])


def conversations(client):
    talk = [{"role": "system", "content": "Be short."}, {"role": "user", "content": [{"type": "text", "text": "1+2?"}]}]
    full = client.chat.completions.create(model="tiny", messages=talk, max_completion_tokens=8, seed=5, logprobs=True)
    check("chat", full.choices[0].message.role == "assistant" and full.choices[0].finish_reason in ("stop", "length"))
    check("chat: log-probabilities", len(full.choices[0].logprobs.content) == full.usage.completion_tokens)
    stream = list(client.chat.completions.create(model="tiny", messages=talk, max_completion_tokens=8, seed=5, stream=True))
    text = "".join(p.choices[0].delta.content or "" for p in stream)
    check("chat: a stream gives the same text", text == full.choices[0].message.content and stream[-1].choices[0].finish_reason is not None, repr(text))
    by_adapter = client.chat.completions.create(model="tuned", messages=talk, max_tokens=8, seed=5)
    check("chat: with an adapter", by_adapter.model == "tuned")
    check("models", [m.id for m in client.models.list()] == ["tiny", "tuned"] and client.models.retrieve("tuned").parent == "tiny")


def errors(client, url):
    ask = client.completions.create
    refused("another model", openai.NotFoundError, lambda: ask(model="gpt", prompt="a"), "not found")
    refused("a value out of range", openai.BadRequestError, lambda: ask(model="tiny", prompt="a", temperature=-1), "temperature -1 is out of range")
    refused("a field that is not supported", openai.BadRequestError, lambda: ask(model="tiny", prompt="a", logit_bias={"5": 1}), "logit_bias")
    refused("a prompt that is too long", openai.BadRequestError, lambda: ask(model="tiny", prompt="a" * 5000), "no room")
    refused("a wrong key", openai.AuthenticationError, openai.OpenAI(base_url=f"{url}/v1", api_key="no", max_retries=0).models.list, "API key")
    try:
        ask(model="tiny", prompt="a", top_p=7)
    except openai.BadRequestError as e:
        check("an error has all its fields", (e.param, e.type, e.status_code) == ("top_p", "invalid_request_error", 400), json.dumps(e.body))
    with client.completions.create(model="tiny", prompt="a", max_tokens=2000, n=4, stream=True) as cut:
        next(iter(cut))
    check("after a client disconnected", ask(model="tiny", prompt="a", max_tokens=2).choices[0].finish_reason is not None)


def main():
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        rows = scratch / "rows.jsonl"
        rows.write_text("".join(json.dumps({"messages": [{"role": "user", "content": f"{i}+1?"}, {"role": "assistant", "content": str(i + 1)}]}) + "\n" for i in range(64)))
        base = train(scratch / "base", "--dataset", rows)
        adapter = train(scratch / "adapter", "--dataset", rows, "--model", base)
        with serving("--model", base, "--name", "tiny", "--adapter", f"tuned={adapter}") as url:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
            completions(client)
            conversations(client)
            errors(client, url)
    print(f"{results['passed']} passed, {results['failed']} failed")
    sys.exit(results["failed"] > 0)


main()
