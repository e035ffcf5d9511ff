#!/usr/bin/env python3
"""Measure how fast decision models answer: `rltrain serve`, `rltrain predict` and `transformers serve` on this machine.

usage: scripts/compat.sh -r scripts/decisions_speed.txt scripts/decisions_speed.py [--seconds N] [--clients N] [--out FILE]

- one question on a head of all-MiniLM-L6-v2 by a request, against the same text by `rltrain predict`, one at a time
- one and five questions about a state of about 200 tokens on SmolLM2, one request at a time
- requests a second of --clients concurrent clients with one question each on SmolLM2, beside `transformers serve`, in fp32 and bf16

Both servers run at the same time and answer by turns, each --seconds long, in five rounds. Writes medians over the rounds.
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = str(HERE.parent / "bin" / "rltrain")
ROUNDS = 5
STATE = " ".join(f"Message {i}: the parcel {number} has not arrived, and nobody answers the phone." for i, number in enumerate(range(1742, 1752)))
QUESTIONS = {
    "team": {"type": "choice", "instructions": "Which team answers?", "criteria": {"billing": "Invoices", "support": None}},
    "urgent": {"type": "noul", "instructions": "Is it urgent?"},
    "level": {"type": "score", "instructions": "How angry is the writer?", "criteria": ["calm", "annoyed", "angry"]},
    "refund": {"type": "noul", "instructions": "Is a refund requested?"},
    "late": {"type": "noul", "instructions": "Did something come late?"},
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=float, default=6)
    p.add_argument("--clients", type=int, default=16)
    p.add_argument("--out", default=str(HERE.parent / "docs" / "results" / "decisions_speed.json"))
    return p.parse_args()


class Client:
    """A connection that is kept open."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def ask(self, model, state, questions):
        body = json.dumps({"model": model, "state": state, "questions": questions})
        self.connection.request("POST", "/v1/systemone", body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {text[:500]!r}")
        return json.loads(text)["answers"]


def processor():
    """The processor's number of cores and its kind of instructions."""
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), "")
    kind = next((name for flag, name in (("amx_bf16", "AMX"), ("avx512f", "AVX512"), ("avx2", "AVX2")) if flag in flags), os.uname().machine)
    return f"{os.cpu_count()} cores with {kind}"


def serve(*args):
    server = subprocess.Popen([PROGRAM, "serve", "--port", "0", *map(str, args)], stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if found := re.search(r" at http://127\.0\.0\.1:(\d+)", line):
            return server, int(found[1])
    raise RuntimeError("the server did not start")


def serve_transformers(dtype):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve", "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--device", "cpu"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return server, port
        except OSError:
            if server.poll() is not None:
                break
            time.sleep(0.2)
    raise RuntimeError("transformers serve did not start")


def milliseconds(do, seconds):
    """The median time of a call, over --seconds."""
    times, end = [], time.perf_counter() + seconds
    do()
    while time.perf_counter() < end or len(times) < 5:
        began = time.perf_counter()
        do()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def rate(port, model, clients, seconds):
    """Requests a second of concurrent clients, each about a state of its own."""

    def one(number):
        client, n, end = Client(port), 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            client.ask(model, f"Client {number}, message {n}: the printer is out of paper again.", {"team": QUESTIONS["team"]})
            n += 1
        return n

    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        done = sum(pool.map(one, range(clients)))
    return done / (time.perf_counter() - began)


def train_head(scratch):
    rows = scratch / "rows.jsonl"
    with rows.open("w") as out:
        for i in range(40):
            question = {**QUESTIONS["team"], "answer": ["billing", "support"][i % 2]}
            print(json.dumps({"state": f"message {i}: {['money', 'printer'][i % 2]}", "questions": {"team": question}}), file=out)
    command = [PROGRAM, "train", "--task", "decisions", "--mode", "supervised", "--model", "sentence-transformers/all-MiniLM-L6-v2", "--dataset", rows,
               "--epochs", "1", "--output-dir", scratch / "head"]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return scratch / "head" / "decisions_supervised"


def head(scratch, seconds):
    """Milliseconds of a request for one question, and of a line of predict."""
    folder = train_head(scratch)
    server, port = serve("--model", folder, "--name", "m")
    predict = subprocess.Popen([PROGRAM, "predict", "--model", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    client = Client(port)

    def line():
        print("The printer is out of paper again.", file=predict.stdin, flush=True)
        predict.stdout.readline()

    rounds = [(milliseconds(lambda: client.ask("m", "The printer is out of paper again.", {"team": QUESTIONS["team"]}), seconds / 3), milliseconds(line, seconds / 3)) for _ in range(ROUNDS)]
    predict.stdin.close()
    for process in (predict, server):
        process.terminate()
        process.wait()
    return {"request_ms": statistics.median(r[0] for r in rounds), "predict_ms": statistics.median(r[1] for r in rounds), "ratio": statistics.median(a / b for a, b in rounds)}


def language_model(model, dtype, their_dtype, a):
    """One and five questions in milliseconds, and the load, of a model in a number format."""
    ours, port = serve("--model", model, "--name", "m", "--dtype", dtype)
    theirs, their_port = serve_transformers(their_dtype)
    try:
        client = Client(port)
        one, five = {"team": QUESTIONS["team"]}, QUESTIONS
        times = [[milliseconds(lambda q=q: client.ask("m", STATE, q), a.seconds / 3) for q in (one, five)] for _ in range(ROUNDS)]
        Client(their_port).ask(model, "first", one)  # loads the model
        rates = [(rate(port, "m", a.clients, a.seconds), rate(their_port, model, a.clients, a.seconds)) for _ in range(ROUNDS)]
    finally:
        for process in (ours, theirs):
            process.terminate()
            process.wait()
    return {
        "one_ms": statistics.median(r[0] for r in times), "five_ms": statistics.median(r[1] for r in times), "five_ratio": statistics.median(r[1] / r[0] for r in times),
        "clients": a.clients, "requests_per_second": statistics.median(r[0] for r in rates),
        "transformers_serve": statistics.median(r[1] for r in rates), "load_ratio": statistics.median(x / y for x, y in rates),
    }


def main():
    a = arguments()
    results = {"processor": processor()}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        results["head"] = head(scratch, a.seconds)
        for ours, theirs in (("fp32", "float32"), ("bf16", "bfloat16")):
            model = str(scratch / ours)
            subprocess.run([PROGRAM, "export", "--model", "smollm2", "--format", "hf", "--dtype", ours, "--output", model], check=True, stdout=subprocess.DEVNULL)
            results[ours] = language_model(model, ours, theirs, a)
    print(json.dumps(results, indent=1))
    pathlib.Path(a.out).write_text(json.dumps(results, indent=1) + "\n")


main()
