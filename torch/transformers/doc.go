// Package transformers reads Hugging Face model folders: config.json, the names and shapes of tensors, and pooling.
// Package tokenizer handles tokens, package chat conversations.
//
// Package safetensors reads the weights. If a folder asks for something that this package does not support, it returns
// an error that names the file and the field or tensor; it never ignores it.
//
// Encoders and causal language models are entries of one table: encoders.go and decoders.go say, for each model_type,
// how folders spell fields and tensors. [Load] and [LoadCausal] create the models. Inside the program tensors have the
// core's names, the same for all families: "layers.0.q.weight".
package transformers
