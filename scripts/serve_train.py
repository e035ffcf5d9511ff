"""Check `rltrain serve --train` with Thinking Machines' Python client. Run by `make compat`; rltrain itself needs no Python.

Runs loops of the shape of tinker-cookbook's sl_loop and rl_loop on SmolLM2, custom losses, checkpoints, two clients at once, and
requests that the server must refuse. Works with the client from version 0.3.0, the first with sessions, to 0.38.0.
"""
import concurrent.futures
import contextlib
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import tarfile
import tempfile
import threading
import urllib.error
import urllib.request

os.environ.pop("RLTRAIN_PYTHON", None)  # rltrain does not know this setting
KEY = os.environ["TINKER_API_KEY"] = "tml-a-key"
os.environ["TINKER_TELEMETRY"] = "0"

import tinker  # noqa: E402
import torch  # noqa: E402
from tinker import types  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("RLTRAIN", str(ROOT / "bin" / "rltrain"))
VERSION = tuple(map(int, importlib.metadata.version("tinker").split(".")[:2]))
MODEL = "smollm2"
results = {"passed": 0, "failed": 0}


def check(name, good, detail=""):
    results["passed" if good else "failed"] += 1
    print(f"ok   {name}" if good else f"FAIL {name}: {detail}", flush=True)


@contextlib.contextmanager
def serving(folder, *args):
    """Start a server and yield its URL; stop it at the end."""
    command = [BINARY, "serve", "--model", MODEL, "--train", folder, "--port", "0", "--api-key", KEY, "--dtype", "fp32", "--threads", "1", *args]
    server = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if found := re.search(r" at (http://\S+)", line):
                threading.Thread(target=server.stderr.read, daemon=True).start()
                yield found[1]
                break
            print(line, end="", flush=True)
        else:
            raise RuntimeError("the server did not start")
    finally:
        server.terminate()
        check("it stops on SIGTERM", server.wait(60) == 143)


def now(client):
    """The client itself: newer versions return a future of it."""
    return client.result() if hasattr(client, "result") else client


def datum(tokens, **inputs):
    """Predict tokens[1:]; the inputs have an entry for each of these."""
    tensors = {"target_tokens": torch.tensor(tokens[1:])} | {name: torch.tensor(x, dtype=torch.float32) for name, x in inputs.items()}
    tensors = {name: types.TensorData.from_torch(x) for name, x in tensors.items()}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=tensors)


TEXTS = [[504, 2231, 282, 4649, 314, 7042, 30], [504, 2231, 282, 8193, 314, 8846, 30], [18, 1232, 216, 19, 446, 216, 20, 30]]


def sl_loop(client, steps=4):
    """As sl_loop: cross_entropy on all targets but the first two, and Adam with a linear schedule."""
    losses = []
    for step in range(steps):
        batch = [datum(t, weights=[0.0, 0.0] + [1.0] * (len(t) - 3)) for t in TEXTS]
        forward = client.forward_backward(batch, loss_fn="cross_entropy")
        update = client.optim_step(types.AdamParams(learning_rate=1e-3 * (1 - step / steps), beta1=0.9, beta2=0.95, eps=1e-8))
        out, _ = forward.result(), update.result()
        total = sum((torch.tensor(o["logprobs"].data) * torch.tensor(d.loss_fn_inputs["weights"].data)).sum() for o, d in zip(out.loss_fn_outputs, batch))
        losses.append(-total.item())
        check(f"the loss of step {step} is that of its log-probs", abs(out.metrics["loss:sum"] - losses[-1]) < 1e-4, out.metrics)
    return losses


def rl_loop(client, loss="importance_sampling", steps=3, group=6):
    """As rl_loop: groups of samples, rewards less the mean of the group, a policy gradient."""
    prompts = [[504, 2231, 282, 4649, 314], [18, 1232, 216, 19, 446]]
    rewards = []
    for step in range(steps):
        sampler = now(client.save_weights_and_get_sampling_client())
        params = types.SamplingParams(max_tokens=6, temperature=1.0, seed=100 + step)
        futures = [sampler.sample(prompt=types.ModelInput.from_ints(p), num_samples=group, sampling_params=params) for p in prompts]
        batch, step_rewards, worst = [], [], 0.0
        for prompt, future in zip(prompts, futures):
            completions = future.result().sequences
            scores = [sum(t % 2 for t in c.tokens) / len(c.tokens) for c in completions]
            step_rewards += scores
            for c, score in zip(completions, scores):
                advantage = score - sum(scores) / len(scores)
                before = [0.0] * (len(prompt) - 1)
                batch.append(datum(prompt + list(c.tokens), logprobs=before + list(c.logprobs), advantages=before + [advantage] * len(c.tokens)))
        forward = client.forward_backward(batch, loss_fn=loss)
        client.optim_step(types.AdamParams(learning_rate=1e-3)).result()
        for d, o in zip(batch, forward.result().loss_fn_outputs):
            for new, old, a in zip(o["logprobs"].data, d.loss_fn_inputs["logprobs"].data, d.loss_fn_inputs["advantages"].data):
                if old != 0:
                    worst = max(worst, abs(new - old))
        check(f"{loss}, step {step}: the sampler's log-probs are those of training", worst < 1e-4, worst)
        rewards.append(sum(step_rewards) / len(step_rewards))
    return rewards


def trainer(service, **more):
    return now(service.create_lora_training_client(base_model=MODEL, **{"rank": 8, "seed": 7, **more}))


def custom(client):
    """The gradient of a loss of one's own is that of the same loss on the server."""
    batch = [datum(t, weights=[1.0] * (len(t) - 1)) for t in TEXTS]
    own = client.forward_backward_custom(batch, lambda data, logs: (-sum(l.sum() for l in logs), {"own": 1.0})).result()
    by_custom = client.optim_step(types.AdamParams(learning_rate=0)).result()
    client.forward_backward(batch, loss_fn="cross_entropy").result()
    plain = client.optim_step(types.AdamParams(learning_rate=0)).result()
    check("a custom loss returns its metrics", own.metrics["own"] == 1, own.metrics)
    a, b = by_custom.metrics["grad_norm"], plain.metrics["grad_norm"]
    check("a custom loss has the gradient of the same loss on the server", abs(a - b) < 1e-5 * b, (a, b))


def request(url, path, body=None, method=None, key=KEY):
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url + "/api/v1/" + path, data, headers, method=method), timeout=60) as r:
        return r.read()


def hostile(url, model):
    """Each of these is refused, and the server goes on."""
    good = {"model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}, "loss_fn_inputs": {"target_tokens": {"data": [2, 3], "dtype": "int64"}}}
    bodies = [b"", b"{", b"[]", b"null", b'"x"', b"\x00" * 100, b"{" * 10000, b"[" * 10000, {"model_id": 1}, {"model_id": None}, {"model_id": "x" * 100000}, {"model_id": model, "seq_id": -1}, {"model_id": model, "seq_id": 10**9}, {"model_id": model, "seq_id": 10**30}]
    paths = ["create_model", "forward_backward", "optim_step", "asample", "load_weights", "create_sampling_session", "get_info", "retrieve_future", "weights_info"]
    answers = []
    for path in paths:
        for body in bodies:
            try:
                request(url, path, body)
                answers.append((path, body, 200))
            except urllib.error.HTTPError as e:
                answers.append((path, body, e.code))
    bad = [a for a in answers if a[2] >= 500]
    check(f"{len(answers)} hostile requests cause no error of the server", not bad, bad[:3])
    accepted = [a for a in answers if a[2] == 200 and a[0] != "optim_step"]
    check("they are refused", not [a for a in accepted if a[0] != "get_info"], accepted[:3])
    for name, change in {
        "token out of range": {"model_input": {"chunks": [{"tokens": [1, 10**6]}]}}, "targets of another length": {"loss_fn_inputs": {"target_tokens": {"data": [1]}}},
        "unknown loss": {}, "no targets": {"loss_fn_inputs": {}}, "image": {"model_input": {"chunks": [{"type": "image"}]}}, "not a number": {"loss_fn_inputs": {"target_tokens": {"data": ["a", "b"]}}},
    }.items():
        body = {"model_id": model, "forward_backward_input": {"data": [good | change], "loss_fn": "x" if name == "unknown loss" else "cross_entropy"}}
        try:
            answer = json.loads(request(url, "forward_backward", body))
            answer = json.loads(request(url, "retrieve_future", {"request_id": answer["request_id"]}))
            check(f"{name}: refused by the result", answer.get("category") == "user", answer)
        except urllib.error.HTTPError as e:
            check(f"{name}: refused", e.code in (400, 422), e.code)
    for path in ["../../etc/passwd", "a/b", "", ".", "..", "a" * 300, "tinker://x"]:
        answer = json.loads(request(url, "save_weights", {"model_id": model, "path": path}))
        answer = json.loads(request(url, "retrieve_future", {"request_id": answer["request_id"]}))
        check(f"checkpoint name {path[:20]!r} is refused", answer.get("category") == "user", answer)
    try:
        request(url, "create_session", {}, key="tml-wrong")
        check("a wrong key is refused", False)
    except urllib.error.HTTPError as e:
        check("a wrong key is refused", e.code == 401, e.code)


def main():
    print(f"tinker {importlib.metadata.version('tinker')}")
    with tempfile.TemporaryDirectory() as folder:
        with serving(folder, "--train-models", "2") as url:
            service = tinker.ServiceClient(base_url=url)
            alone = trainer(service)
            losses = sl_loop(alone)
            check("SFT lowers the loss", losses[-1] < 0.7 * losses[0], losses)
            again = trainer(service)
            other = trainer(service, seed=8)  # moves the first to disk
            with concurrent.futures.ThreadPoolExecutor() as pool:
                first, second = pool.map(sl_loop, [again, other])
            check("two clients at once do not disturb each other", first == losses, (first, losses))
            check("another seed is another adapter", second != losses, second)
            rl_loop(alone)
            for loss in ["ppo"] + ["cispo", "dro"] * (VERSION >= (0, 7)):
                rl_loop(other, loss, steps=1)
            custom(other)
            saved = alone.save_state("middle").result().path
            sampled = alone.save_weights_for_sampler("final").result().path
            after = sl_loop(alone, 2)
            hostile(url, again.model_id)
        with serving(folder) as url:  # checkpoints survive
            service = tinker.ServiceClient(base_url=url)
            if VERSION >= (0, 7):
                resumed = service.create_training_client_from_state_with_optimizer(saved).result()
                check("a checkpoint with its optimizer continues exactly", sl_loop(resumed, 2) == after, after)
            else:
                resumed = trainer(service)
                resumed.load_state(saved).result()
                check("the weights of a checkpoint are loaded", sl_loop(resumed, 1)[0] == after[0], after)
            sampler = now(service.create_sampling_client(model_path=sampled))
            prompt = types.ModelInput.from_ints(TEXTS[0][:4])
            texts = [sampler.sample(prompt, 1, types.SamplingParams(max_tokens=5, temperature=0)).result().sequences[0].tokens for _ in range(2)]
            check("a sampler of a checkpoint completes", texts[0] == texts[1] and len(texts[0]) > 0, texts)
            runs = json.loads(request(url, "training_runs"))["training_runs"]
            check("runs are listed", {r["training_run_id"] for r in runs} >= {saved.split("/")[2]}, runs)
            archive = pathlib.Path(folder) / "a.tar"
            archive.write_bytes(request(url, "training_runs/" + sampled.removeprefix("tinker://").replace("/", "/checkpoints/", 1) + "/archive"))
            if hasattr(resumed, "save_weights_external"):
                external = resumed.save_weights_external("whole").result().path
                urls = tinker.RestClient(base_url=url, api_key=KEY).get_external_weights_urls(external).result().urls
                with urllib.request.urlopen(urls["adapter_config.json"]) as answer:
                    check("files are downloaded by signed links", json.load(answer)["r"] == 8)
            check("the archive has an adapter", {"adapter_config.json", "adapter_model.safetensors"} <= set(tarfile.open(archive).getnames()))
    print(f"{results['passed']} checks passed, {results['failed']} failed")
    raise SystemExit(results["failed"] > 0)


if __name__ == "__main__":
    main()
