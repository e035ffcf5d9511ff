// Package transformers knows what a Hugging Face model folder means: its
// config.json, the names and shapes of its tensors, its tokenizer and its pooling.
//
// It reads descriptions only; weights stay in package safetensors. A folder that
// says something this package cannot honour is refused by an error that names the
// file and the field or tensor, never read around.
//
// Tensor names inside the program are canonical: those of AutoModel's state dict,
// without the prefix that task models add, such as
// "encoder.layer.0.attention.self.query.weight". families.go holds, per
// model_type, how a folder may spell them.
package transformers
