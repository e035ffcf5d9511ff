"""Print the cmake options that locate the CUDA libraries of libtorch 2.11.0 and a CUDA 13.0 compiler.

The libraries come from the libtorch that libtorch.py finds, if it includes them (a Python torch with CUDA). Otherwise
they are fetched into the user's cache: 1.9 GB of wheels, 2.8 GB unpacked. The compiler and headers come from
$CUDA_HOME if its nvcc is CUDA 13, otherwise from 0.1 GB of wheels.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import fetch
import libtorch

CRT = fetch.Wheel(
    "nvidia-cuda-crt", "13.0.88",
    "nvidia_cuda_crt-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4")
NVCC = fetch.Wheel(
    "nvidia-cuda-nvcc", "13.0.88",
    "nvidia_cuda_nvcc-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03")
NVVM = fetch.Wheel(
    "nvidia-nvvm", "13.0.88", "nvidia_nvvm-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
    "c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0")
CCCL = fetch.Wheel(
    "nvidia-cuda-cccl", "13.0.85",
    "nvidia_cuda_cccl-13.0.85-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    "e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649")
TOOLKIT = [
    (libtorch.CUDA_RUNTIME, {"nvidia/cu13/include/": "include/"}),
    (CRT, {"nvidia/cu13/include/": "include/"}),
    (CCCL, {"nvidia/cu13/include/nv/": "include/nv/"}),  # included by the bfloat16 header
    (NVCC, {"nvidia/cu13/bin/": "bin/", "nvidia/cu13/include/": "include/"}),
    (NVVM, {"nvidia/cu13/nvvm/": "nvvm/"}),
]

# Libraries that libtorch_cuda.so needs besides those of a CPU libtorch: project, version, middle of the wheel's name,
# SHA-256, folder of its libraries.
NEEDED = [
    ("cublas", "13.1.0.3", "manylinux_2_27", "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171", "cu13"),
    ("cudnn-cu13", "9.19.0.56", "manylinux_2_27",
     "d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf", "cudnn"),
    ("cufft", "12.0.0.61", "manylinux2014_x86_64.manylinux_2_17",
     "6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3", "cu13"),
    ("cufile", "1.15.1.6", "manylinux2014_x86_64.manylinux_2_17",
     "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44", "cu13"),
    ("curand", "10.4.0.35", "manylinux_2_27", "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc", "cu13"),
    ("cusparse", "12.6.3.3", "manylinux2014_x86_64.manylinux_2_17",
     "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b", "cu13"),
    ("cusparselt-cu13", "0.8.0", "manylinux2014", "25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd",
     "cusparselt"),
    ("nccl-cu13", "2.28.9", "manylinux_2_18", "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42",
     "nccl"),
    ("nvjitlink", "13.0.88", "manylinux2010_x86_64.manylinux_2_12",
     "13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b", "cu13"),
    ("nvshmem-cu13", "3.4.5", "manylinux2014_x86_64.manylinux_2_17",
     "290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80", "nvshmem"),
]


def wheel(project: str, version: str, tag: str, sha256: str) -> fetch.Wheel:
    stem = f"nvidia_{project.replace('-', '_')}"
    return fetch.Wheel(f"nvidia-{project}", version, f"{stem}-{version}-py3-none-{tag}_x86_64.whl", sha256)


# One flat lib folder: the RPATH of libtorch_cuda.so ends in $ORIGIN.
PARTS = [(libtorch.TORCH, {
    f"torch/lib/{name}": f"lib/{name}"
    for name in ("libtorch_cuda.so", "libc10_cuda.so", "libtorch_nvshmem.so")
})] + [(wheel(*of[:4]), {f"nvidia/{of[4]}/lib/": "lib/"}) for of in NEEDED]


def has_cuda(folder: Path) -> bool:
    """Return whether folder has libtorch's CUDA libraries, and they find all their dependencies."""
    library = folder / "lib/libtorch_cuda.so"
    if not library.is_file():
        return False
    ldd = subprocess.run(["ldd", library], capture_output=True, text=True)
    return ldd.returncode == 0 and "not found" not in ldd.stdout


def fetched(name: str, parts: list, gigabytes: int = 0) -> Path:
    """Return the named folder in the cache, created from parts if missing; needs that many gigabytes of free disk."""
    folder = fetch.cache_dir() / name
    if not fetch.complete(folder):
        with fetch.locked("cuda"):
            if not fetch.complete(folder):
                if (free := shutil.disk_usage(fetch.cache_dir()).free) < gigabytes * 10**9:
                    raise fetch.SetupError(
                        f"unpacking the CUDA libraries takes {gigabytes} GB, but {fetch.cache_dir()} has only "
                        f"{free / 10**9:.1f} GB free; make room, or set RLTRAIN_CACHE to another folder")
                fetch.unpack(folder, parts)
    return folder


def toolkit() -> Path:
    """Return the folder with CUDA 13's bin/nvcc and include/."""
    if given := os.environ.get("CUDA_HOME"):
        try:
            said = subprocess.run([f"{given}/bin/nvcc", "--version"], capture_output=True, text=True).stdout
        except OSError:
            said = ""
        if re.search(r"release 13\.", said) and Path(given, "include/cuda_runtime.h").is_file():
            return Path(given).absolute()
        fetch.say(f"CUDA_HOME={given} has no CUDA 13 nvcc or headers; using those from wheels")
    return fetched("cuda-toolkit-13.0", TOOLKIT, 1)


def main() -> str:
    given = libtorch.main()
    libraries = given if has_cuda(given) else fetched(f"libtorch-cuda-{libtorch.VERSION}", PARTS, 5)
    return f"-DLIBTORCH_CUDA_DIR={libraries}\n-DCUDA_TOOLKIT_DIR={toolkit()}"


fetch.run(main)
