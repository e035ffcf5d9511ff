"""Replace the search path (RPATH or RUNPATH) of shared libraries and programs by $ORIGIN, the file's folder.

usage: portable.py FILE...
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import fetch


def main() -> str:
    for name in sys.argv[1:]:
        path = Path(name)
        table = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
        found = re.search(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", table)
        data = path.read_bytes()
        old = found[1].encode() + b"\0" if found else b""
        if not found or data.count(old) != 1 or len(old) <= len(b"$ORIGIN"):
            raise fetch.SetupError(f"{path} has no RPATH that $ORIGIN can replace in place")
        path.write_bytes(data.replace(old, b"$ORIGIN".ljust(len(old), b"\0")))
    return f"{len(sys.argv) - 1} files now search $ORIGIN"


fetch.run(main)
