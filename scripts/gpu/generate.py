#!/usr/bin/env python3
"""Generation by transformers, with its default cache or a static one (for which it compiles the model); a line per batch."""
import time

import torch
from common import FIRST_WORD, Memory, best_of, emit, flags, random_model


class Clock:
    """A stopping criterion that never stops, but records the time of each token, when generate has synchronised."""

    def __init__(self, batch, device):
        self.times, self.go_on = [], torch.zeros(batch, dtype=torch.bool, device=device)

    def __call__(self, ids, scores, **_):
        self.times.append(time.perf_counter())
        return self.go_on


def measure(model, batch, a):
    torch.manual_seed(1)
    ids = torch.randint(FIRST_WORD, model.config.vocab_size, (batch, a.prompt), device=a.device)
    mask = torch.ones_like(ids)
    how = dict(do_sample=True, temperature=1.0, top_k=0, top_p=1.0) if a.sample else dict(do_sample=False)
    if a.cache == "static":
        how["cache_implementation"] = "static"
    decoding, first = [], []

    def generate():
        clock = Clock(batch, a.device)
        began = time.perf_counter()
        with torch.no_grad():
            out = model.generate(ids, attention_mask=mask, max_new_tokens=a.new, stopping_criteria=[clock], **how)
        assert out.shape == (batch, a.prompt + a.new), out.shape
        assert len(clock.times) == a.new, len(clock.times)
        decoding.append(clock.times[-1] - clock.times[0])
        first.append(clock.times[0] - began)

    memory = Memory(a.device)
    times = best_of(generate, a)
    decode = min(decoding)
    emit("generate", shape=a.shape, dtype=a.dtype, device=a.device, batch=batch, prompt=a.prompt, new=a.new,
         mode="sample" if a.sample else "greedy", cache=a.cache, **times, tokens_per_s=batch * a.new / times["best_s"],
         first_token_s=min(first), decode_tokens_per_s=batch * (a.new - 1) / decode,
         decode_step_ms=1e3 * decode / (a.new - 1), **memory.figures())


def main():
    p = flags(__doc__)
    p.add_argument("--batch", type=int, nargs="+", default=[1], help="batch sizes to measure, in prompts")
    p.add_argument("--prompt", type=int, default=64, help="tokens per prompt")
    p.add_argument("--new", type=int, default=128, help="tokens to generate per prompt, at least 2")
    p.add_argument("--sample", action="store_true", help="sample at temperature 1 (default: greedy)")
    p.add_argument("--cache", choices=["dynamic", "static"], default="dynamic")
    a = p.parse_args()
    model = random_model(a).eval()
    for batch in a.batch:
        measure(model, batch, a)


if __name__ == "__main__":
    main()
