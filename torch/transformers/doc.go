// Package transformers knows what a Hugging Face model folder means: its
// config.json, the names and shapes of its tensors, and its pooling. Package tokenizer has its tokens, package chat
// its conversations.
//
// The format of weights is package safetensors's business. A folder that says something
// this package cannot honour is refused by an error that names the file and the field
// or tensor, never read around.
//
// Encoders and causal language models are families of one table: they read their fields and find
// their tensors in the same way; [Load] and [LoadCausal] make what the core runs of them. Inside
// the program tensors bear the core's names, which are one for all families: "layers.0.q.weight".
// encoders.go and decoders.go hold, per model_type, how a folder may spell them.
package transformers
