#!/usr/bin/env python3
"""One SFT step with transformers and PEFT, on padded rows. Prints a line for each of two ways:

plain: frozen weights in --dtype and adapters in fp32, PEFT's default
autocast: the same under torch.autocast to bf16, as with Trainer(bf16=True)
"""
import torch
from common import FIRST_WORD, Memory, adapter, best_of, emit, flags, random_model

SHORTEST = 32  # shortest sequence of --layout padded, in tokens


def batch_of(a, vocabulary):
    """Return inputs with lengths spread evenly from SHORTEST to --seq, as in `rltrain bench lora_step --layout mixed`."""
    lengths = [a.seq] * a.batch
    if a.layout == "padded" and a.batch > 1:
        lengths = [SHORTEST + n * (a.seq - SHORTEST) // (a.batch - 1) for n in range(a.batch)]
    at = torch.arange(max(lengths), device=a.device)
    mask = (at < torch.tensor(lengths, device=a.device)[:, None]).long()
    ids = torch.randint(FIRST_WORD, vocabulary, mask.shape, device=a.device) * mask
    inputs = dict(input_ids=ids, labels=ids.masked_fill(mask == 0, -100))
    if a.layout == "padded":
        inputs["attention_mask"] = mask
    return inputs, sum(lengths)


def measure(model, inputs, tokens, autocast, a):
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def step():
        with torch.autocast(a.device.partition(":")[0], dtype=torch.bfloat16, enabled=autocast):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.item()

    memory = Memory(a.device)
    times = best_of(step, a)
    emit("lora_step", shape=a.shape, dtype=a.dtype, device=a.device, way="autocast" if autocast else "plain", r=a.r, batch=a.batch,
         seq=a.seq, layout=a.layout, ckpt=a.ckpt, **times, real_tokens=tokens, row_tokens=inputs["input_ids"].numel(),
         tokens_per_s=tokens / times["best_s"], trainable=sum(p.numel() for p in parameters), **memory.figures())


def main():
    p = flags(__doc__)
    p.add_argument("--r", type=int, default=8, help="rank of the adapters")
    p.add_argument("--batch", type=int, default=8, help="sequences per step")
    p.add_argument("--seq", type=int, default=256, help="tokens in the longest sequence")
    p.add_argument("--layout", choices=["full", "padded"], default="full")
    p.add_argument("--ckpt", action="store_true", help="gradient checkpointing")
    a = p.parse_args()
    from peft import get_peft_model
    base = random_model(a)
    if a.ckpt:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        base.enable_input_require_grads()
    model = get_peft_model(base, adapter(a.r)).train()
    model.config.use_cache = False
    inputs, tokens = batch_of(a, base.config.vocab_size)
    for autocast in (True, False):
        measure(model, inputs, tokens, autocast, a)


if __name__ == "__main__":
    main()
