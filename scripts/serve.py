"""Check `rltrain serve` with OpenAI's Python client. Run by `make compat`; rltrain itself needs no Python.

Trains a tiny model for a few updates, then serves it with an adapter. Requests completions, conversations, streams and models
as users of the client do, and sends requests that the server must refuse. Then it teaches SmolLM2 to call a tool, which takes
about a minute, and lets the client call it.
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
    print(f"ok   {name}" if good else f"FAIL {name}: {detail}", flush=True)


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


ADD = {"type": "function", "function": {"name": "add", "description": "Add two numbers", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}
TEMPLATE = """{%- if tools %}{{- '<|im_start|>system\\nYou may call these functions:\\n' }}{%- for t in tools %}{{- (t.function | tojson) + '\\n' }}{%- endfor %}
{{- 'To call one, write <tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call><|im_end|>\\n' }}{%- endif %}
{%- for m in messages %}{%- if m.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>' + m.content + '</tool_response><|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}{%- for c in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' + (c.function.arguments | tojson) + '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def caller(scratch):
    """Teach SmolLM2 to call `add` and to report its result."""
    rows = []
    for i in range(250):
        a, b = i * 7 % 10, i * 3 % 11
        talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}]
        if i % 4:
            talk = [{"role": "user", "content": f"{a}+{b}?"},
                    {"role": "assistant", "content": "Let me add.", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": a, "b": b}}}]},
                    {"role": "tool", "content": str(a + b)}, {"role": "assistant", "content": f"It is {a + b}."}]
        rows.append({"messages": talk, "tools": [ADD]})
    data, template = scratch / "calls.jsonl", scratch / "calls.jinja"
    data.write_text("".join(json.dumps(r) + "\n" for r in rows))
    template.write_text(TEMPLATE)
    subprocess.run([BINARY, "--task", "chat", "--model", "smollm2", "--chat-template", template, "--dataset", data, "--max-steps", "25", "--batch-size", "8",
                    "--output-dir", scratch / "caller"], check=True, capture_output=True)
    return scratch / "caller" / "chat_supervised"


def tools(client):
    def ask(messages, **more):
        return client.chat.completions.create(model="caller", messages=messages, temperature=0, **more)

    talk = [{"role": "user", "content": "3+4?"}]
    said = ask(talk, tools=[ADD]).choices[0]
    calls = said.message.tool_calls or []
    check("tools: the model calls", said.finish_reason == "tool_calls" and len(calls) == 1, repr(said))
    if len(calls) != 1:
        return
    check("tools: name and arguments", calls[0].function.name == "add" and json.loads(calls[0].function.arguments) == {"a": 3, "b": 4} and calls[0].type == "function", repr(calls))
    check("tools: content before the call", said.message.content == "Let me add.", repr(said.message.content))
    after = ask(talk + [said.message, {"role": "tool", "tool_call_id": calls[0].id, "content": "7"}], tools=[ADD]).choices[0]
    check("tools: the result is read", after.message.content == "It is 7." and after.finish_reason == "stop" and after.message.tool_calls is None, repr(after))
    plain = ask([{"role": "user", "content": "hi"}], tools=[ADD], tool_choice="auto").choices[0]
    check("tools: no call without need", plain.message.content == "Hello." and plain.message.tool_calls is None, repr(plain))
    none = ask(talk, tools=[ADD], tool_choice="none")
    check("tools: none leaves them out of the prompt", none.usage.prompt_tokens == ask(talk).usage.prompt_tokens)
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        forced = ask([{"role": "user", "content": "hi"}], tools=[ADD], tool_choice=choice, max_tokens=60).choices[0]
        check(f"tools: tool_choice {choice if isinstance(choice, str) else 'by name'}", [c.function.name for c in forced.message.tool_calls or []] == ["add"] and forced.message.content is None, repr(forced))
    text, streamed, reason = "", {}, None
    for piece in ask(talk, tools=[ADD], stream=True):
        for c in piece.choices:
            text += c.delta.content or ""
            reason = c.finish_reason or reason
            for call in c.delta.tool_calls or []:
                name, arguments = streamed.get(call.index, ("", ""))
                streamed[call.index] = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))
    check("tools: a stream has the same call", streamed == {0: ("add", calls[0].function.arguments)} and text == said.message.content and reason == "tool_calls", repr((text, streamed, reason)))
    with client.chat.completions.stream(model="caller", messages=talk, tools=[ADD], temperature=0) as events:
        final = events.get_final_completion().choices[0]
    check("tools: the client's own reader of streams", [(c.function.name, c.function.arguments) for c in final.message.tool_calls or []] == [("add", calls[0].function.arguments)], repr(final))
    several = client.chat.completions.create(model="caller", messages=talk, tools=[ADD], n=3, temperature=0.2, seed=1, parallel_tool_calls=False)
    check("tools: several choices", all(len(c.message.tool_calls or []) <= 1 for c in several.choices) and any(c.message.tool_calls for c in several.choices))
    with_logs = ask(talk, tools=[ADD], logprobs=True)
    check("tools: log-probabilities of all tokens", len(with_logs.choices[0].logprobs.content) == with_logs.usage.completion_tokens)
    strict = {"type": "function", "function": {**ADD["function"], "strict": True}}
    for name, words, more in [
        ("strict", "function.strict", {"tools": [strict]}), ("a tool that is not there", 'no tool "sub"', {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}}),
        ("tool_choice without tools", "needs tools", {"tool_choice": "required"}), ("two tools of one name", "duplicate name", {"tools": [ADD, ADD]}),
        ("another kind of tool", "type: want", {"tools": [{"type": "web_search"}]}),
        ("arguments that are not JSON", "arguments: invalid JSON", {"tools": [ADD], "messages": [{"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": {"name": "add", "arguments": "3, 4"}}]}]}),
    ]:
        refused(f"tools: {name}", openai.BadRequestError, lambda more=more: ask(more.pop("messages", talk), **more), words)


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
            refused("tools: a template without them", openai.BadRequestError,
                    lambda: client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}], tools=[ADD]), "does not read tools")
        with serving("--model", caller(scratch), "--name", "caller") as url:
            tools(openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0))
    print(f"{results['passed']} passed, {results['failed']} failed")
    sys.exit(results["failed"] > 0)


main()
