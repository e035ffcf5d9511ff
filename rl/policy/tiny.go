package policy

import (
	"os"
	"path/filepath"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/torch/transformers"
)

// TinyModel makes dir the folder of a small character-level language model of random weights, unless an
// earlier run has made it.
func TinyModel(dir string, layers, hidden int, seed uint64) error {
	return tinyModel(dir, func(dir string) error { return transformers.WriteTiny(dir, layers, hidden, seed) })
}

// TinyChatModel is TinyModel with a chat template.
func TinyChatModel(dir string, layers, hidden int, seed uint64) error {
	return tinyModel(dir, func(dir string) error { return transformers.WriteTinyChat(dir, layers, hidden, seed) })
}

func tinyModel(dir string, write func(dir string) error) error {
	made := func() bool {
		_, err := os.Stat(filepath.Join(dir, "model.safetensors"))
		return err == nil
	}
	if made() {
		return nil
	}
	err := outfile.Folder(dir, write)
	if err != nil && made() { // by a run beside this one
		return nil
	}
	return err
}
