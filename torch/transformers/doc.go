// Package transformers knows what a Hugging Face model folder means: its
// config.json, the names and shapes of its tensors, its tokenizer and its pooling.
//
// The format of weights is package safetensors's business. A folder that says something
// this package cannot honour is refused by an error that names the file and the field
// or tensor, never read around.
//
// Encoders and causal language models read their fields and find their tensors in the
// same way; [Load] and [LoadCausal] make what the core runs of them. Inside the program,
// an encoder's tensors bear the names of AutoModel's state dict, without the prefix
// that task models add, such as "encoder.layer.0.attention.self.query.weight"; those of
// a causal model bear the core's, which are one for all families: "layers.0.q.weight".
// encoders.go and causal_families.go hold, per model_type, how a folder may spell them.
package transformers
