"""Check cmd/rltrain/config/trl.tsv, the options of TRL that rltrain knows, against the installed TRL: their names, kinds
and defaults. Run by `make compat`. With --write, write the file."""
import dataclasses
import sys
import typing
import warnings

warnings.simplefilter("ignore")

from checks import ROOT, check, results  # noqa: E402
from trl import DPOConfig, GRPOConfig, KTOConfig, ModelConfig, RewardConfig, RLOOConfig, ScriptArguments, SFTConfig  # noqa: E402
from trl.scripts.grpo import GRPOScriptArguments  # noqa: E402
from trl.scripts.utils import DatasetMixtureConfig  # noqa: E402

FILE = ROOT / "cmd" / "rltrain" / "config" / "trl.tsv"
CLASSES = {"sft": SFTConfig, "dpo": DPOConfig, "kto": KTOConfig, "grpo": GRPOConfig, "rloo": RLOOConfig, "reward": RewardConfig,
           "model": ModelConfig, "script": ScriptArguments}
ALSO = {"script": [GRPOScriptArguments, DatasetMixtureConfig]}  # of some scripts


def kind(field):
    """Return what a command line takes: flag, number, list, section or text."""
    kinds = [typing.get_origin(t) or t for t in [field.type, *typing.get_args(field.type)]]
    for found, name in [(dict, "section"), (list, "list"), (bool, "flag"), (float, "number"), (int, "number")]:
        if found in kinds:
            return name
    return "text"


def default(field):
    value = field.default
    if value is dataclasses.MISSING:
        value = field.default_factory() if field.default_factory is not dataclasses.MISSING else None
    value = getattr(value, "value", value)
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return "[" + ", ".join(map(str, value)) + "]"
        case "":
            return '""'
    return str(value)


def table():
    """Return the rows of the file: name, kind, then the default in each class, or - if the class lacks the option."""
    found = {}
    for column, cls in CLASSES.items():
        for one in [cls, *ALSO.get(column, [])]:
            for f in dataclasses.fields(one):
                row = found.setdefault(f.name, {"kind": kind(f)})
                row.setdefault(column, default(f))
    return [[name, row["kind"], *(row.get(column, "-") for column in CLASSES)] for name, row in sorted(found.items())]


def text():
    return "".join("\t".join(row) + "\n" for row in [["name", "kind", *CLASSES], *table()])


def check_trl_options():
    there = [line.split("\t") for line in FILE.read_text().splitlines()[1:]]
    ours, theirs = {row[0]: row for row in there}, {row[0]: row for row in table()}
    check("trl.tsv has every option of TRL", ours.keys() == theirs.keys(), f"{len(theirs)} options; only one has {sorted(ours.keys() ^ theirs.keys())}")
    wrong = [f"{name}: {ours[name]}, TRL has {row}" for name, row in theirs.items() if name in ours and ours[name] != row]
    check("trl.tsv has TRL's kinds and defaults", not wrong, "; ".join(wrong))


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        FILE.write_text(text())
    check_trl_options()
    print(results)
    sys.exit(results["failed"] > 0)
