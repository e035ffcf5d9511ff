package main

import "github.com/rltrain/rltrain/torch/transformers"

// Models of model_type letter_llama are built like Llama. Their config.json says width for hidden_size.
func init() {
	transformers.RegisterFamily("letter_llama", "llama", map[string]string{"hidden_size": "width"})
}
