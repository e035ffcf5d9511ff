"""The shop's tools over JSON lines: lookup reads the prices of the file named on the command line, calculate computes."""
import json
import re
import sys

with open(sys.argv[1]) as file:
    PRICES = json.load(file)


def lookup(item):
    if item not in PRICES:
        raise ValueError("no such item")
    return PRICES[item]


def calculate(expression):
    if len(expression) > 60 or not re.fullmatch(r"[0-9+*/() -]+", expression) or "**" in expression:
        raise ValueError("use numbers, + - * / and brackets")
    value = eval(expression)
    return int(value) if value == int(value) else value


for line in sys.stdin:
    asked = json.loads(line)
    try:
        answer = {"result": str({"lookup": lookup, "calculate": calculate}[asked["tool"]](**asked["arguments"]))}
    except Exception as error:
        answer = {"error": str(error)}
    print(json.dumps({"id": asked["id"], **answer}), flush=True)
