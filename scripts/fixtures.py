"""Writes the parity fixtures of torch/transformers: small random BERT folders, inputs, and what transformers and
PEFT compute from them. Run by `make fixtures`; the results are committed, so tests need no Python."""
import json
import pathlib

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import BertConfig, BertForSequenceClassification, BertModel

TARGETS = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
           "intermediate.dense", "output.dense"]
LENGTHS = [1, 7, 2, 19, 13]
CLASSES = 5

# Shapes that catch a swapped or assumed dimension: head sizes of 8 and 12, layers of unequal width.
CASES = {
    "bert": dict(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                 max_position_embeddings=40, type_vocab_size=2),
    "bert_odd": dict(vocab_size=67, hidden_size=36, num_hidden_layers=3, num_attention_heads=3, intermediate_size=50,
                     max_position_embeddings=24, type_vocab_size=1, layer_norm_eps=1e-5),
}


def randomise(model, generator):
    """Weights away from their initial values: biases of zero and scales of one would hide a missing term."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.2 * noise if name.endswith("LayerNorm.weight") else 0.2 * noise)


def adapt(model, task, generator):
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=6, lora_dropout=0.0, target_modules=TARGETS, task_type=task))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))
    return model


def lora_tensors(model, grad):
    out = {}
    for name, p in model.named_parameters():
        if "lora_" in name:
            key = name.replace("base_model.model.", "").replace("bert.", "", 1) if "bert." in name else name.replace("base_model.model.", "")
            out[("grad." if grad else "") + key.replace(".default", "")] = (p.grad if grad else p).detach().clone()
    return out


def main():
    root = pathlib.Path(__file__).resolve().parent.parent / "torch" / "transformers" / "testdata"
    for case, shape in CASES.items():
        g = torch.Generator().manual_seed(7)
        folder = root / case
        folder.mkdir(parents=True, exist_ok=True)
        config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=CLASSES, **shape)
        config.architectures = ["BertModel"]
        classifier = BertForSequenceClassification(config)
        randomise(classifier, g)
        encoder = classifier.bert
        ids = [torch.randint(1, shape["vocab_size"], (n,), generator=g) for n in LENGTHS]
        labels = torch.randint(0, CLASSES, (len(ids),), generator=g)
        expected = {"tokens": torch.cat(ids), "lengths": torch.tensor(LENGTHS), "labels": labels}

        encoder.eval()
        save_file({k: v.contiguous() for k, v in encoder.state_dict().items()}, folder / "model.safetensors", {"format": "pt"})
        written = config.to_dict()
        (folder / "config.json").write_text(json.dumps(written, indent=1, sort_keys=True, default=str) + "\n")
        with torch.no_grad():
            expected["hidden"] = torch.cat([encoder(x[None]).last_hidden_state[0] for x in ids])
            expected["classifier.weight"] = classifier.classifier.weight.detach().clone()
            expected["classifier.bias"] = classifier.classifier.bias.detach().clone()
            expected["family_logits"] = torch.cat([classifier(x[None]).logits for x in ids])

        # The gradient of the mean cross-entropy of mean-pooled logits, for every adapter matrix.
        model = adapt(encoder, "FEATURE_EXTRACTION", g)
        expected.update(lora_tensors(model, grad=False))
        head = torch.nn.functional.linear
        pooled = torch.cat([model(input_ids=x[None]).last_hidden_state.mean(1) for x in ids])
        logits = head(pooled, expected["classifier.weight"], expected["classifier.bias"])
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        expected.update(lora_tensors(model, grad=True))
        expected["adapted_logits"] = logits.detach()
        expected["loss"] = loss.detach()[None]
        save_file({k: v.contiguous() for k, v in expected.items()}, folder / "expected.safetensors", {"format": "pt"})
        print(case, sum(f.stat().st_size for f in folder.iterdir()) // 1024, "KiB")


main()
