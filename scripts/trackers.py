"""Check that TensorBoard and Weights & Biases read the numbers of logs/metrics.jsonl from a run that reports to both. Run by
`make compat`, or directly."""
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

from checks import attempt, check, results, rltrain

RUN = ("--task", "reverse_digits", "--mode", "rl_only", "--pretrained-model", "START", "--num-steps", "4", "--prompts-per-step", "2",
       "--samples-per-prompt", "4", "--eval-samples", "4", "--eval-every", "2", "--fresh-samples", "0", "--max-new-tokens", "12", "--logging-steps", "1",
       "--reward", "expr:'length'", "--report-to", "tensorboard,wandb", "--threads", "1")


def tracked(row):
    """Return the numbers of a metrics.jsonl row under the names that trackers show."""
    named = {}
    for name, value in row.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            named["train/global_step" if name == "step" else "eval/" + name[5:] if name.startswith("eval_") else "train/" + name] = value
    return named


def check_tensorboard(run, rows):
    import numpy
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(run / "logs" / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    wanted = {}
    for row in rows:
        for name, value in tracked(row).items():
            wanted.setdefault(name, []).append((row["step"], float(numpy.float32(value))))
    got = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    check("TensorBoard reads the numbers of metrics.jsonl", got == wanted and len(got) > 20, f"{len(got)} tags, {sum(map(len, got.values()))} numbers")
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    check("TensorBoard reads the settings as text", "prompts_per_step: 2" in text)
    hparams = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    check("TensorBoard has the settings as hyperparameters", b"rl_learning_rate" in hparams)


class Stub(http.server.BaseHTTPRequestHandler):
    """A stand-in for the W&B server that accepts the upload of an offline run and keeps what it receives."""
    history, summary, run, complete = [], {}, {}, []

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.answer({})

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        if not self.path.endswith("/graphql"):
            for name, part in (body.get("files") or {}).items():
                lines = [json.loads(line) for line in part["content"]]
                if name == "wandb-history.jsonl":
                    Stub.history.extend(lines)
                elif name == "wandb-summary.json":
                    Stub.summary.update(lines[-1])
            if body.get("complete"):
                Stub.complete.append(body.get("exitcode"))
            return self.answer({})
        query = body.get("query", "")
        bucket = {"id": "1", "name": "run", "displayName": "run", "description": "", "config": "{}", "sweepName": "", "historyLineCount": 0,
                  "project": {"id": "2", "name": "p", "entity": {"id": "3", "name": "e"}}, "files": {"edges": []}}
        if "upsertBucket" in query:
            Stub.run.update({k: v for k, v in body["variables"].items() if v})
            return self.answer({"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}})
        viewer = {"id": "3", "entity": "e", "username": "e", "flags": "{}", "teams": {"edges": []}}
        if "ServerInfo" in query or "serverInfo" in query:
            return self.answer({"data": {"serverInfo": {"cliVersionInfo": {"max_cli_version": "1.0.0"}, "latestLocalVersionInfo": None, "features": []}, "viewer": viewer, "QueryType": {"fields": []}, "MutationType": {"fields": []}}})
        if "Viewer" in query or "viewer" in query:
            return self.answer({"data": {"viewer": viewer}})
        self.answer({"data": {"model": {"bucket": bucket}, "project": {"run": bucket}, "createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}}})

    def answer(self, what):
        text = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def check_wandb(run, rows):
    folder = next((run / "wandb").glob("offline-run-*"))
    bin = pathlib.Path(sys.executable).parent / "wandb"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = dict(os.environ, WANDB_BASE_URL=f"http://127.0.0.1:{server.server_port}", WANDB_API_KEY="0" * 40, WANDB_ENTITY="e", WANDB_ERROR_REPORTING="false")
    where = {"env": env, "cwd": run.parent, "timeout": 300}  # wandb creates a folder in the current one
    inspected = subprocess.run([bin, "leet", "inspect", "--summary", folder], capture_output=True, text=True, **where)
    check("wandb inspects the run", inspected.returncode == 0 and "train/loss" in inspected.stdout, (inspected.stdout + inspected.stderr)[-300:] if inspected.returncode else "")
    done = subprocess.run([bin, "sync", folder], capture_output=True, text=True, **where)
    check("wandb sync uploads the run", done.returncode == 0, (done.stdout + done.stderr)[-300:] if done.returncode else "")
    server.shutdown()
    server.server_close()
    wanted = [tracked(row) for row in rows]
    got = [{k: v for k, v in row.items() if not k.startswith("_")} for row in Stub.history]
    check("W&B gets the numbers of metrics.jsonl", got == wanted, f"{len(got)} rows of {len(wanted)}")
    check("W&B gets the settings", "rl_learning_rate" in Stub.run.get("config", ""), str(sorted(Stub.run)))
    check("W&B learns that the run has finished", Stub.complete == [0], str(Stub.complete))


def check_trackers(folder):
    start = folder / "start"
    rltrain("--task", "reverse_digits", "--mode", "supervised", "--tiny-layers", 1, "--tiny-hidden", 32, "--max-steps", 1, "--warmup-check-every", 0,
            "--eval-samples", 1, "--max-new-tokens", 4, "--output-dir", start)
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")} | {"WANDB_PROJECT": "p"}
    args = [str(start / "reverse_digits_supervised") if a == "START" else a for a in RUN]
    out = rltrain(*args, "--output-dir", folder / "out", env=env)
    run = folder / "out" / "reverse_digits_rl"
    check("the run prints the upload command", f"wandb sync {run}/wandb/offline-run-" in out)
    rows = [json.loads(line) for line in (run / "logs" / "metrics.jsonl").read_text().splitlines()]
    with attempt("TensorBoard"):
        check_tensorboard(run, rows)
    with attempt("wandb"):
        check_wandb(run, rows)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        check_trackers(pathlib.Path(folder))
    print(f"{results['passed']} passed, {results['failed']} failed")
    sys.exit(results["failed"] > 0)
