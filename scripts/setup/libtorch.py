"""Print the folder of libtorch 2.11.0 (with include/ and lib/), after fetching it if necessary.

Search order: $LIBTORCH, the torch package of this Python, the user's cache.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import fetch

VERSION = "2.11.0"
NEEDED = ("include/ATen/ATen.h", "lib/libtorch_cpu.so", "lib/libc10.so")
VERSION_HEADERS = ("include/torch/headeronly/version.h", "include/torch/csrc/api/include/torch/version.h")

TORCH = fetch.Wheel(
    "torch", VERSION, "torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl",
    "0f68f4ac6d95d12e896c3b7a912b5871619542ec54d3649cf48cc1edd4dd2756",
    (*fetch.TAGS, "--abi", "cp312"))
# libtorch_cpu.so of the PyPI wheel needs these two libraries even on machines without a GPU.
CUDA_RUNTIME = fetch.Wheel(
    "nvidia-cuda-runtime", "13.0.96",
    "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548")
CUPTI = fetch.Wheel(
    "nvidia-cuda-cupti", "13.0.85", "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl",
    "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8")

# One flat lib folder: the RPATH of libtorch_cpu.so ends in $ORIGIN.
PARTS = [
    (TORCH, {
        "torch/include/": "include/",
        "torch/lib/libtorch_cpu.so": "lib/libtorch_cpu.so",
        "torch/lib/libc10.so": "lib/libc10.so",
        "torch/lib/libgomp.so.1": "lib/libgomp.so.1",
        "torch-2.11.0.dist-info/licenses/LICENSE": "LICENSE",
        "torch-2.11.0.dist-info/licenses/NOTICE": "NOTICE",
    }),
    (CUDA_RUNTIME, {
        "nvidia/cu13/lib/libcudart.so.13": "lib/libcudart.so.13",
        "nvidia_cuda_runtime-13.0.96.dist-info/licenses/License.txt": "LICENSE.cuda",
    }),
    (CUPTI, {"nvidia/cu13/lib/libcupti.so.13": "lib/libcupti.so.13"}),
]


def fault(folder: Path) -> str | None:
    """Return why folder is not the pinned libtorch, or None if it is."""
    if not folder.is_dir():
        return "no such folder"
    for name in NEEDED:
        if not (folder / name).is_file():
            return f"no {name}"
    for name in VERSION_HEADERS:
        if (folder / name).is_file():
            found = re.search(r'define TORCH_VERSION\s[^"]*"([^"]*)"', (folder / name).read_text())
            if found:
                return None if found[1] == VERSION else f"{name} says version {found[1]}"
    return f"no version in {' or '.join(VERSION_HEADERS)}"


def installed() -> Path | None:
    """Return the folder of this Python's torch package if it has the pinned version and its libraries load, else None."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    if fault(folder):
        return None
    ldd = subprocess.run(["ldd", folder / "lib/libtorch_cpu.so"], capture_output=True, text=True)
    return None if ldd.returncode or "not found" in ldd.stdout else folder


def main() -> Path:
    if given := os.environ.get("LIBTORCH"):
        folder = Path(given).absolute()
        if why := fault(folder):
            raise fetch.SetupError(
                f"LIBTORCH={given} is not libtorch {VERSION}: {why} (looked for {', '.join(NEEDED)} and "
                f"version {VERSION} in {VERSION_HEADERS[0]}); unset LIBTORCH to let make fetch it")
        return folder
    if folder := installed():
        return folder
    folder = fetch.cache_dir() / f"libtorch-{VERSION}"
    if not fetch.complete(folder):
        with fetch.locked("libtorch"):
            if not fetch.complete(folder):
                fetch.unpack(folder, PARTS)
    return folder


if __name__ == "__main__":
    fetch.run(main)
