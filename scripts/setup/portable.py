"""Takes the folders of this machine out of the search paths of copies of shared libraries and programs.

portable.py FILE... leaves $ORIGIN, the file's own folder.
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
            raise fetch.SetupError(f"{path} has no search path that can be replaced")
        path.write_bytes(data.replace(old, b"$ORIGIN".ljust(len(old), b"\0")))
    return f"{len(sys.argv) - 1} files search in their own folder"


fetch.run(main)
