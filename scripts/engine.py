"""Check `rltrain --engine` with SkyRL's service on a CPU. Run by `make compat`; rltrain itself needs no Python.

The Go tests TestEngine… compare losses and gradients of SFT, GRPO with KL, CISPO, GSPO, DPO and SimPO with those of rltrain's own
trainer. Then a run learns to be brief, its service is killed, and the run is resumed. SkyRL compiles for minutes.
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
api.app.state.engine_config = EngineConfig(base_model=sys.argv[1], backend="jax", backend_config={"max_lora_adapters": 12, "max_lora_rank": 16},
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
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, "-c", LAUNCH, str(model), str(port), ENGINE, str(folder / "checkpoints"), f"sqlite:///{folder}/skyrl.db"]
    with open(folder / "skyrl.log", "a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    for _ in range(600):
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
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def rows(folder):
    return [json.loads(line) for line in (folder / f"{TASK}_rl" / "logs" / "metrics.jsonl").read_text().splitlines()]


def main():
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        steps = os.environ.get("STEPS", "200")  # of SFT, for a model that ends its answers
        base = train(folder / "base", "--mode", "supervised", "--max-steps", steps, "--eval-samples", "50")
        print(base.communicate()[0], flush=True)
        model = folder / "base" / f"{TASK}_supervised"
        process, address = start(folder, model)
        tests = subprocess.run(["go", "test", "-count=1", "-v", "-timeout", "60m", "-run", "TestEngine(Equals|Resumes|Saves|Samples)", "./cmd/rltrain/serve/train"],
                               cwd=ROOT, env=os.environ | {"TINKER_BASE_URL": address, "TINKER_MODEL": str(model)}, capture_output=True, text=True)
        print(tests.stdout)
        for outcome, name in re.findall(r"--- (PASS|FAIL): (\w+)", tests.stdout):
            check(f"{name} against SkyRL", outcome == "PASS")
        check("the Go tests ran", tests.returncode == 0, tests.stdout[-2000:] + tests.stderr[-2000:])

        # Learn, with the service killed on the way.
        learn = ["--mode", "rl_only", "--algorithm", "grpo", "--model", model, "--tuning", "lora", "--num-steps", "12", "--prompts-per-step", "8", "--samples-per-prompt", "8",
                 "--reward", "expr:-0.02*length", "--rl-learning-rate", "1e-3", "--rl-lr-scheduler-type", "constant", "--eval-every", "12", "--eval-samples", "50", "--fresh-samples", "0", "--logging-steps", "1", "--save-steps", "2", "--max-new-tokens", "64"]
        run = train(folder / "rl", *learn, "--engine", "tinker:" + address)
        for line in run.stdout:
            print(line, end="", flush=True)
            if "grpo 5/12" in line:
                kill(process)
        check("a killed service ends the run with an error", run.wait() == 1)
        process, address = start(folder, model)
        run = train(folder / "rl", *learn, "--engine", "tinker:" + address, "--resume")
        print(run.communicate()[0], flush=True)
        check("the run resumes", run.returncode == 0)
        rewards = [row["reward"] for row in rows(folder / "rl") if "reward" in row]
        check("it has learned", len(rewards) >= 12 and sum(rewards[-4:]) > sum(rewards[:4]) + 0.4, rewards)
        kill(process)
    if failed:
        sys.exit(f"{len(failed)} checks failed: {', '.join(failed)}")


main()
