package lora

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/rltrain/rltrain/internal/smallfile"
)

// InUse reads which fields of the adapter_config.json in dir say anything: name to value, as JSON on one
// line. Left out are fields that switch a feature off, such as "use_dora": false, and those that change
// neither what an adapter computes nor what is in its file. Whether [Load] supports the fields does not
// matter here.
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

// TensorNames lists the tensors of the adapter in dir, and their number of elements in all.
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
