"""Check `rltrain --engine` with SkyRL's service on a CPU. Run by `make compat`; rltrain itself needs no Python.

The Go tests TestEngine… compare losses and gradients of SFT, GRPO with KL, CISPO, GSPO, DPO and SimPO with those of rltrain's own
trainer, for a small model and for SmolLM2. Then a run learns sums; it is killed and resumed, and so is its service. SkyRL compiles for
minutes. The results go to docs/results/skyrl.json. Parts can be chosen: engine.py tiny smollm2 learn
"""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("RLTRAIN", str(ROOT / "bin" / "rltrain"))
TASK = "sum_digits"
failed = []

# pydantic wants the TypedDict of typing_extensions before Python 3.12. SkyRL would start its engine with uv.
PREPARE = "import typing, typing_extensions; typing.TypedDict = typing_extensions.TypedDict"
ENGINE = PREPARE + "; import runpy; runpy.run_module('skyrl.tinker.engine', run_name='__main__', alter_sys=True)"
LAUNCH = PREPARE + """
import sys, uvicorn, skyrl.tinker.api as api
from skyrl.tinker.config import EngineConfig, config_to_argv
api._build_uv_run_cmd_engine = lambda parent, config: [sys.executable, "-c", sys.argv[3], *config_to_argv(config)]
api.app.state.engine_config = EngineConfig(base_model=sys.argv[1], backend="jax", backend_config={"max_lora_adapters": 8, "max_lora_rank": 16, "train_micro_batch_size": 8, "sample_max_num_sequences": 32},
                                           checkpoints_base=sys.argv[4], database_url=sys.argv[5])
uvicorn.run(api.app, host="127.0.0.1", port=int(sys.argv[2]))
"""


def check(name, good, detail=""):
    if not good:
        failed.append(name)
    print(f"ok   {name}" if good else f"FAIL {name}: {detail}", flush=True)


def start(folder, model):
    """Start SkyRL and return its process and address."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"} | os.environ
    command = [sys.executable, "-c", LAUNCH, str(model), str(port), ENGINE, str(folder / "checkpoints"), f"sqlite:///{folder}/skyrl.db"]
    with open(folder / "skyrl.log", "a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    for _ in range(1200):
        try:
            urllib.request.urlopen(address + "/api/v1/healthz", timeout=1)
            return process, address
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.5)
    raise RuntimeError(f"SkyRL did not start; see {folder / 'skyrl.log'}")


def kill(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def train(output, *args):
    command = [BINARY, "--task", TASK, "--output-dir", output, "--threads", "1", *args]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def compare(name, folder, model, rate, tests):
    """Run Go tests on the model's service and return the largest differences from rltrain's own trainer."""
    process, address = start(folder, model)
    command = ["go", "test", "-count=1", "-v", "-timeout", "60m", "-run", tests, "./cmd/rltrain/serve/train"]
    environment = os.environ | {"TINKER_BASE_URL": address, "TINKER_MODEL": str(model), "TINKER_LEARNING_RATE": rate}
    began = time.time()
    tests = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    print(tests.stdout, flush=True)
    for outcome, test in re.findall(r"--- (PASS|FAIL): (\S+)", tests.stdout):
        check(f"{name}: {test} against SkyRL", outcome == "PASS")
    check(f"{name}: the Go tests ran", tests.returncode == 0, tests.stdout[-2000:] + tests.stderr[-2000:])
    kill(process)
    differences = re.findall(r"(\w+): losses differ by up to (\S+), norms by (\S+)", tests.stdout)
    return {"minutes": round((time.time() - began) / 60, 1), "objectives": {x: {"rate": float(rate), "loss": float(loss), "norm": float(norm)} for x, loss, norm in differences}}


def killed_after(step, run, process):
    """Kill a process with SIGKILL when the run has made a step."""
    for line in run.stdout:
        print(line, end="", flush=True)
        if re.match(f"grpo +{step}/", line):
            os.killpg(process.pid, signal.SIGKILL)
    return run.wait()


def learn(folder, model):
    """Have a run learn, kill it on the way, and then the service."""
    options = ["--mode", "rl_only", "--algorithm", "grpo", "--model", model, "--tuning", "lora", "--num-steps", "20", "--minibatches", "4", "--reward", "accuracy",
               "--rl-learning-rate", "3e-4", "--rl-lr-scheduler-type", "constant", "--eval-every", "20", "--eval-samples", "300", "--fresh-samples", "0", "--keep", "last",
               "--logging-steps", "1", "--save-steps", "2", "--seed", "1"]
    process, address = start(folder, model)
    run = train(folder / "rl", *options, "--engine", "tinker:" + address)
    check("the run is killed", killed_after(3, run, run) == -signal.SIGKILL)
    run = train(folder / "rl", *options, "--engine", "tinker:" + address, "--resume")
    check("a killed service ends the run with an error", killed_after(7, run, process) == 1)
    process.wait()
    process, address = start(folder, model)
    run = train(folder / "rl", *options, "--engine", "tinker:" + address, "--resume")
    print(run.communicate()[0], flush=True)
    check("the run resumes", run.returncode == 0)
    kill(process)
    scores = json.loads((folder / "rl" / f"{TASK}_rl" / "logs" / "eval_results.json").read_text())
    before, last = scores["before"]["correct"], scores["last"]["correct"]  # of 300 held-out problems
    check("it has learned arithmetic", last - before >= 12, f"{before} of 300 at the start, {last} at the end")
    return {"steps": 20, "problems": 300, "before": before, "after": last}


def main():
    out = ROOT / "docs" / "results" / "skyrl.json"
    parts = sys.argv[1:] or ["tiny", "smollm2", "learn"]
    results = json.loads(out.read_text()) if out.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model = folder / "base" / f"{TASK}_supervised"
        if parts != ["smollm2"]:
            base = train(folder / "base", "--mode", "supervised", "--warmup-until", "0.2", "--warmup-check-every", "25", "--seed", "2")
            print(base.communicate()[0], flush=True)
        for part in parts:
            if part == "learn":
                result = learn(folder, model)
            elif part == "smollm2":
                subprocess.run([BINARY, "export", "--model", "smollm2", "--format", "hf", "--dtype", "fp32", "--output", folder / "smollm2"], check=True)
                result = compare(part, folder, folder / "smollm2", "1e-4", "TestEngineEquals.*/(sft|grpo|dpo)")
            else:
                result = compare(part, folder, model, "1e-3", "TestEngine(Equals|Resumes|Saves|Samples)")
            if not failed:
                results[part] = result
                out.write_text(json.dumps(results, indent=1) + "\n")
    if failed:
        sys.exit(f"{len(failed)} checks failed: {', '.join(failed)}")


main()
