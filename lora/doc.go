// Package lora reads and writes low-rank adapters in PEFT's format, and does the arithmetic that they need outside a
// model.
//
// An adapter gives a linear module with weight W [out, in] a pair A [r, in] and B [out, r]. The module then computes
// with W + scale·B·A (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", §4.1, where scale is α/r).
// On disk it is a folder with adapter_config.json and adapter_model.safetensors.
//
// PEFT stores many variants and other methods under the same file names. Some of them can be merged into the weights only;
// this package refuses the others by name, so that it never misinterprets an adapter.
package lora
