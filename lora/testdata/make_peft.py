"""Writes peft_features/ and peft_classifier/: adapters as PEFT saves them, with numbers a test can count.

Made with torch 2.11.0, transformers 5.23.0 and peft 0.21.2. Run from this folder: python make_peft.py
"""
import pathlib

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, BertModel

config = BertConfig(vocab_size=16, hidden_size=4, num_hidden_layers=2, num_attention_heads=2, intermediate_size=6,
                    max_position_embeddings=8, num_labels=3)
targets = ["attention.self.query", "intermediate.dense"]
for name, cls, kind in (("features", BertModel, "FEATURE_EXTRACTION"), ("classifier", BertForSequenceClassification, "SEQ_CLS")):
    lora = LoraConfig(r=2, lora_alpha=6, lora_dropout=0.1, target_modules=list(targets), task_type=kind,
                      use_rslora=kind == "SEQ_CLS")
    model = get_peft_model(cls(config), lora)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.requires_grad:  # A counts up, B counts down, the head counts tens
                step = 1 if ".lora_A." in key else -1 if ".lora_B." in key else 10
                p.copy_(step * torch.arange(p.numel(), dtype=torch.float32).reshape(p.shape))
    out = pathlib.Path("peft_" + name)
    model.save_pretrained(out)
    (out / "README.md").unlink()
