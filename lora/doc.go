// Package lora reads and writes low-rank adapters in the format of PEFT, and holds
// the little arithmetic they need outside a model.
//
// An adapter gives a linear module with weight W [out, in] a pair A [r, in] and
// B [out, r]; the module then computes with W + scale·B·A (Hu et al. 2021,
// "LoRA: Low-Rank Adaptation of Large Language Models", §4.1, where scale is α/r).
// On disk it is a folder with adapter_config.json and adapter_model.safetensors.
//
// PEFT has many variants under the same file names. Those this package does not
// compute are refused by name, so that no adapter is ever applied as if it were
// another.
package lora
