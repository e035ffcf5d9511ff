"""Print the path of the interpreter of pepper, a q-like language (chili-pie, MIT), after fetching it if necessary."""

from __future__ import annotations

from pathlib import Path

import fetch

WHEEL = fetch.Wheel(
    "chili-pie", "0.11.3", "chili_pie-0.11.3-py3-none-manylinux_2_28_x86_64.whl",
    "7ebeaf0c554a9c077de4599e619c139eb66d69147cd01cdeb3a9d4cd237a312a")
PLACES = {
    "chili_pie-0.11.3.data/scripts/chili": "chili",
    "chili_pie-0.11.3.dist-info/licenses/LICENSE": "LICENSE",
}


def main() -> Path:
    folder = fetch.cache_dir() / "chili-pie-0.11.3"
    if not fetch.complete(folder):
        with fetch.locked("chili-pie"):
            if not fetch.complete(folder):
                fetch.unpack(folder, [(WHEEL, PLACES)])
    program = folder / "chili"
    program.chmod(0o755)
    return program


fetch.run(main)
