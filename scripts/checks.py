"""Helpers for compat.py: counting checks, running bin/rltrain (or $RLTRAIN), loading adapters in PEFT."""
import contextlib
import os
import pathlib
import subprocess

import torch
from peft import PeftModel
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("RLTRAIN", str(ROOT / "bin" / "rltrain"))
LIMIT = 1e-4

results = {"passed": 0, "failed": 0}


def check(name, good, detail=""):
    results["passed" if good else "failed"] += 1
    print(f"{'ok  ' if good else 'FAIL'} {name}{': ' if detail else ''}{detail}", flush=True)


@contextlib.contextmanager
def attempt(name):
    """Turn an exception into one failed check, and continue with the other checks."""
    try:
        yield
    except Exception as e:
        check(name, False, f"{type(e).__name__}: {e}")


def rltrain(*args, text="", env=None):
    done = subprocess.run([BINARY, *map(str, args)], input=text, capture_output=True, text=True, encoding="utf-8", env=env)
    if done.returncode != 0:
        raise RuntimeError(f"rltrain {args[0]} exits with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def loads_in_peft(name, base, folder):
    """Check that the folder's adapter loads into base, and that the model then has the tensors of the file. Return it."""
    stored = load_file(folder / "adapter_model.safetensors")
    model = PeftModel.from_pretrained(base, folder).eval()
    held = {k.replace(".modules_to_save.default.", ".").replace(".default.", "."): v for k, v in model.state_dict().items()
            if ".lora_" in k or ".modules_to_save.default." in k}
    same = stored.keys() == held.keys() and all(torch.equal(stored[k], held[k]) for k in stored)
    check(name, same, f"{len(stored)} tensors" if same else f"tensors differ: {sorted(stored.keys() ^ held.keys())[:4]}")
    moved = max(v.abs().max().item() for k, v in stored.items() if ".lora_B." in k)
    if moved < 1e-3:
        check(f"{name}: is trained", False, f"no entry of B is above {moved:.1e}, so equal outputs would show nothing")
    return model
