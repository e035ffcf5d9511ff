package lora

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/rltrain/rltrain/internal/smallfile"
)

// InUse returns the fields of adapter_config.json in dir that have an effect: name to value, as JSON on one line. It skips
// fields that switch a feature off, such as "use_dora": false, and fields that affect neither the computation nor the file.
// It does not matter whether [Load] supports them.
func InUse(dir string) (map[string]string, error) {
	path := filepath.Join(dir, ConfigFile)
	data, err := smallfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("lora: %w", err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, fmt.Errorf("lora: %s: not a JSON object: %w", path, err)
	}
	r := &reader{raw: raw}
	for _, key := range harmless {
		r.take(key)
	}
	inUse := map[string]string{}
	for _, key := range slices.Collect(maps.Keys(raw)) {
		value := r.take(key)
		off := slices.Contains(neutral, value) || key == "bias" && value == `"none"` || key == "init_lora_weights" && value == "true"
		if !off {
			inUse[key] = value
		}
	}
	return inUse, r.err
}

// TensorNames returns the tensors of the adapter in dir, and their total number of elements.
func TensorNames(dir string) (names []string, elements int64, err error) {
	f, err := openTensors(dir)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	for _, name := range f.Names() {
		e, _ := f.Lookup(name)
		n := int64(1)
		for _, d := range e.Shape {
			n *= d
		}
		elements += n
	}
	return f.Names(), elements, nil
}
