package policy

import (
	"os"
	"path/filepath"

	"rltrain/torch/transformers"
)

// TinyModel makes dir the folder of a small character-level language model of random weights, unless an
// earlier run has made it.
func TinyModel(dir string, layers, hidden int, seed uint64) error {
	made := func() bool {
		_, err := os.Stat(filepath.Join(dir, "model.safetensors"))
		return err == nil
	}
	if made() {
		return nil
	}
	err := writeFolder(dir, func(dir string) error { return transformers.WriteTiny(dir, layers, hidden, seed) })
	if err != nil && made() { // by a run beside this one
		return nil
	}
	return err
}
