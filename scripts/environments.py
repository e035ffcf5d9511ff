"""Train in environments of the openenv package, and with the tools of an MCP server made with the Python SDK. Run by `make compat`;
rltrain itself needs no Python.

A game of text and a game with tools are trained with GRPO until the held-out return has risen beyond the interval of the start. The
first server is killed and started again on the way. No session may be left, by the servers' own count.
"""
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

SESSIONS = 8  # that a server allows: fewer than the episodes of a step


def serve(kind, port):
    """Serve the game echo, the game door, or the tools of an MCP server."""
    if kind.startswith("mcp"):
        from mcp.server.fastmcp import FastMCP

        tools = FastMCP("door", port=port)

        @tools.tool()
        def press(key: str) -> str:
            """Presses a key of the door."""
            return "It opens." if key == "c" else "Nothing happens."

        return tools.run("stdio" if kind == "mcp-stdio" else "streamable-http")

    from fastapi import FastAPI
    from fastmcp import FastMCP
    from openenv.core.env_server.http_server import HTTPEnvServer
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
    from openenv.core.env_server.types import Action, Observation, State
    import uvicorn

    class Say(Action):
        message: str

    class Seen(Observation):
        text: str = ""

    class Echo(Environment):
        """Say the digit that is shown, in two turns. Digits near it are worth something too."""
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed=None, episode_id=None, **kwargs):
            self.digit, self.turns = random.Random(seed).randrange(10), 0
            return Seen(text=f"Echo {self.digit}")

        def step(self, action, timeout_s=None, **kwargs):
            self.turns += 1
            said = action.message.strip()[:1]
            reward = (1 - abs(int(said) - self.digit) / 9) / 2 if said.isdecimal() and said.isascii() else 0
            return Seen(text=f"Echo {self.digit}", reward=reward, done=self.turns == 2)

        @property
        def state(self):
            return State(step_count=self.turns)

    class Door(MCPEnvironment):
        """Press the right key of a door: one call of a tool."""
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            tools, self.pressed = FastMCP("door"), None

            @tools.tool
            def press(key: str) -> str:
                """Presses a key of the door."""
                self.pressed = key
                return "It opens." if key == "c" else "Nothing happens."

            super().__init__(tools)

        def reset(self, seed=None, episode_id=None, **kwargs):
            self.pressed = None
            return Observation(metadata={"prompt": f"Open door {random.Random(seed).randrange(10)}."})

        def judged(self, observation):
            if isinstance(observation, CallToolObservation) and observation.error is None:
                observation.reward, observation.done = float(self.pressed == "c"), True
            return observation

        def _step_impl(self, action, timeout_s=None, **kwargs):
            raise ValueError("call a tool")

        def step(self, action, timeout_s=None, **kwargs):
            return self.judged(super().step(action, timeout_s, **kwargs))

        async def step_async(self, action, timeout_s=None, **kwargs):
            return self.judged(await super().step_async(action, timeout_s, **kwargs))

        @property
        def state(self):
            return State()

    game = (Echo, Say, Seen) if kind == "echo" else (Door, CallToolAction, CallToolObservation)
    server, app = HTTPEnvServer(*game, max_concurrent_envs=SESSIONS), FastAPI()
    server.register_routes(app)
    app.get("/capacity")(lambda: server.get_capacity_status().model_dump())
    # The server ends sessions whose client does not answer pings while the policy trains.
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", ws_ping_interval=1, ws_ping_timeout=10)


if len(sys.argv) > 2:
    serve(sys.argv[1], int(sys.argv[2]))
    sys.exit()

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("RLTRAIN", str(ROOT / "bin" / "rltrain"))
os.environ.pop("RLTRAIN_PYTHON", None)  # rltrain does not know this setting
os.environ["FASTMCP_LOG_LEVEL"] = "CRITICAL"  # calls with wrong arguments are part of learning
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
    '{% for c in m.tool_calls or [] %}<tool_call>{"name":"{{ c.function.name }}","arguments":{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "<eos>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}")
failed = 0


def check(name, good, detail=""):
    global failed
    failed += not good
    print(f"{'ok  ' if good else 'FAIL'} {name}: {detail}", flush=True)


class Server:
    """A server of an environment, on a port of its own."""

    def __init__(self, kind):
        self.kind = kind
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.start()

    def start(self):
        self.process = subprocess.Popen([sys.executable, __file__, self.kind, str(self.port)])
        for _ in range(1200):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        sys.exit(f"the server {self.kind} does not start")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def sessions(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/capacity") as r:
            return json.load(r)["active_sessions"]


def rltrain(*args, at=None, do=None, metrics=None):
    """Run rltrain, and call do when a step of its metrics is reached."""
    process = subprocess.Popen([BINARY, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def watch():
        while process.poll() is None:
            if metrics.exists() and sum('"failed_episodes"' in line for line in metrics.read_text().splitlines()) >= at:
                do(process)
                return
            time.sleep(0.05)

    if do:
        threading.Thread(target=watch, daemon=True).start()
    out, _ = process.communicate(timeout=1800)
    if process.returncode not in (0, 130):
        print(out)
    return process.returncode


def rose(name, metrics):
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    held = [(r["eval_reward"], r["eval_reward_low"], r["eval_reward_high"]) for r in rows if "eval_reward_low" in r]
    first, last = held[0], held[-1]
    check(f"{name}: the held-out return rises", last[1] > first[2],
          "{:.3f} (95 % CI {:.3f} to {:.3f}), then {:.3f} ({:.3f} to {:.3f})".format(*first, *last))
    return sum(r.get("failed_episodes", 0) for r in rows)


def main(folder):
    echo = Server("echo")
    common = ["train", "--task", "env", "--algorithm", "grpo", "--fresh-samples", 0, "--prompts-per-step", 8, "--samples-per-prompt", 8, "--logging-steps", 1, "--threads", 1]
    play = common + ["--env", f"openenv:ws://127.0.0.1:{echo.port}", "--model", "tiny", "--tiny-layers", 1, "--tiny-hidden", 32, "--max-new-tokens", 1,
                     "--eval-samples", 100, "--eval-every", 20, "--rl-learning-rate", 0.02]
    metrics = folder / "echo" / "env_rl" / "logs" / "metrics.jsonl"

    def restart(_):
        echo.kill()
        time.sleep(1)
        echo.start()

    code = rltrain(*play, "--num-steps", 60, "--output-dir", folder / "echo", at=10, do=restart, metrics=metrics)
    check("echo: the run survives the end of its server", code == 0, f"exit status {code}")
    dropped = rose("echo", metrics)
    check("echo: episodes on the server that was killed are dropped", dropped < 200, f"{dropped:.0f} of 3840")
    check("echo: no session is left", echo.sessions() == 0, f"{echo.sessions()} of {SESSIONS}")
    metrics = folder / "stopped" / "env_rl" / "logs" / "metrics.jsonl"
    code = rltrain(*play, "--num-steps", 2000, "--output-dir", folder / "stopped", at=3, do=lambda p: p.send_signal(signal.SIGINT), metrics=metrics)
    check("echo: an interrupted run leaves no session", code == 130 and echo.sessions() == 0, f"exit status {code}, {echo.sessions()} of {SESSIONS}")
    echo.kill()

    tool = {"type": "function", "function": {"name": "press", "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}}}
    rng = random.Random(1)
    with open(folder / "demos.jsonl", "w") as f:
        for _ in range(64):
            call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "press", "arguments": {"key": rng.choice("aaabcd")}}}]}
            f.write(json.dumps({"messages": [{"role": "user", "content": f"Open door {rng.randrange(10)}."}, call], "tools": [tool]}) + "\n")
    (folder / "template.jinja").write_text(TEMPLATE)
    code = rltrain("train", "--task", "chat", "--dataset", folder / "demos.jsonl", "--model", "tiny", "--tiny-layers", 1, "--tiny-hidden", 32, "--chat-template",
                   folder / "template.jinja", "--tuning", "full", "--max-steps", 200, "--batch-size", 8, "--learning-rate", 0.01, "--validation-share", 0,
                   "--output-dir", folder / "sft", "--threads", 1)
    check("door: SFT", code == 0, f"exit status {code}")
    door = Server("door")
    metrics = folder / "door" / "env_rl" / "logs" / "metrics.jsonl"
    code = rltrain(*common, "--env", f"openenv:ws://127.0.0.1:{door.port}", "--pretrained-model", folder / "sft" / "chat_supervised", "--max-new-tokens", 80,
                   "--eval-samples", 50, "--eval-every", 10, "--num-steps", 20, "--rl-learning-rate", 0.001, "--output-dir", folder / "door")
    check("door: GRPO with the environment's tools", code == 0, f"exit status {code}")
    rose("door", metrics)
    check("door: no session is left", door.sessions() == 0, f"{door.sessions()} of {SESSIONS}")
    door.kill()

    with open(folder / "questions.jsonl", "w") as f:
        for n in range(10):
            f.write(json.dumps({"messages": [{"role": "user", "content": f"Open door {n}."}], "answer": "x"}) + "\n")
    http = Server("mcp-http")
    for name, run in ("stdio", f"mcp:cmd:{sys.executable} {__file__} mcp-stdio 0"), ("http", f"mcp:http://127.0.0.1:{http.port}/mcp"):
        (folder / "tools.json").write_text(json.dumps([{"run": run}]))
        out = folder / name
        code = rltrain("train", "--task", "prompts", "--mode", "rl_only", "--dataset", folder / "questions.jsonl", "--pretrained-model",
                       folder / "sft" / "chat_supervised", "--tools", folder / "tools.json", "--reward", "expr:calls - failed", "--max-new-tokens", 120, "--eval-samples", 2,
                       "--fresh-samples", 0, "--prompts-per-step", 2, "--samples-per-prompt", 2, "--num-steps", 1, "--output-dir", out, "--threads", 1, "--tool-timeout", 60)
        said = (out / "prompts_rl" / "logs" / "completions.jsonl").read_text() if code == 0 else ""
        check(f"MCP over {name}: tools answer", "[tool]It opens." in said or "[tool]Nothing happens." in said, f"exit status {code}")
    http.kill()


with tempfile.TemporaryDirectory() as name:
    main(pathlib.Path(name))
print(f"{failed} checks failed")
sys.exit(failed > 0)
