package transformers

import (
	"fmt"
	"slices"

	"github.com/rltrain/rltrain/torch/safetensors"
)

// ExportedTensor is a weight to be exported.
type ExportedTensor struct {
	Spec TensorSpec
	// Values returns the current weight as float32, in the shape of Spec.
	Values func() ([]float32, error)
}

// Export calls use with the model's current weights, changed by [SaveOptions].Change, in the order of a forward pass;
// tied weights once. Values may be called until use returns.
func (c *Causal) Export(change map[string]func(weight []float32), use func([]ExportedTensor) error) error {
	files, err := safetensors.OpenModel(c.Dir)
	if err != nil {
		return err
	}
	defer files.Close()
	stored := *c.Config
	stored.TieWordEmbeddings = stored.TieWordEmbeddings || c.untied // as in the folder
	names, err := stored.Resolve(files)
	if err != nil {
		return err
	}
	changes, err := c.Config.changes(change)
	if err != nil {
		return fmt.Errorf("transformers: %s: %w", c.Dir, err)
	}
	untie := c.Config.TieWordEmbeddings && (changes["embed.weight"] != nil || changes["head.weight"] != nil)
	if c.untied || untie {
		names["head.weight"] = names["embed.weight"]
	}
	var list []ExportedTensor
	for _, spec := range c.Config.TensorNames() {
		if spec.Group == "tied" && !untie {
			continue
		}
		list = append(list, ExportedTensor{spec, func() (data []float32, err error) {
			if v := c.Weights[spec.Name]; c.Trains(spec.Name) && v != nil {
				data, err = v.Read()
				data = slices.Clone(data)
			} else {
				data, err = spec.Read(files, names[spec.Name])
			}
			if err == nil && changes[spec.Name] != nil {
				changes[spec.Name](data)
			}
			return data, err
		}})
	}
	return use(list)
}
