// Package convert translates between GGUF and model folders in the Hugging Face layout: configuration, names and order of
// the weights, tokenizer, chat template.
package convert
