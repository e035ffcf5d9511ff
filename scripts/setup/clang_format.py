"""Print the path of clang-format 16.0.6, after fetching it if necessary."""

from __future__ import annotations

from pathlib import Path

import fetch

WHEEL = fetch.Wheel(
    "clang-format", "16.0.6",
    "clang_format-16.0.6-py2.py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "20c9b395782fe662ea51500d3c551161388e0cd2baf8716caf97b0e5817194e0")
PLACES = {
    "clang_format/data/bin/clang-format": "clang-format",
    "clang_format-16.0.6.dist-info/LICENSE.md": "LICENSE.md",
}


def main() -> Path:
    folder = fetch.cache_dir() / "clang-format-16.0.6"
    if not fetch.complete(folder):
        with fetch.locked("clang-format"):
            if not fetch.complete(folder):
                fetch.unpack(folder, [(WHEEL, PLACES)])
    program = folder / "clang-format"
    program.chmod(0o755)
    return program


fetch.run(main)
