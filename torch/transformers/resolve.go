package transformers

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/unpack"
)

// Resolve finds the model's tensors in a folder and maps the core's names to the names in the file. Names may have the
// prefix of the class that wrote them or the spelling of older files. The result includes the pooler and the
// classification head if the folder has them. If config.json ties the output layer to the embedding and the file has
// both, they must be equal.
//
// Weights that a package for quantisation stored become tensors of their values first.
//
// A tensor that is missing, unknown, stored twice, of the wrong shape, or not F32, F16 or BF16 is an error that names
// it.
func (c *Config) Resolve(m *safetensors.Model) (map[string]string, error) {
	if err := unpack.Weights(m, c.stored); err != nil {
		return nil, fmt.Errorf("transformers: %s: %w", m.Path(), err)
	}
	ignored := slices.Concat(families[c.ModelType].ignored, c.unused)
	if c.Scored {
		ignored = append(ignored, "score.weight", "score.bias")
	}
	names, err := resolve(c.TensorNames(), ignored, m)
	if err == nil && c.TieWordEmbeddings {
		err = checkTied(names, m)
	}
	if err != nil {
		return nil, fmt.Errorf("transformers: %s: %w", m.Path(), err)
	}
	return names, nil
}

func resolve(specs []TensorSpec, ignored []string, m *safetensors.Model) (map[string]string, error) {
	names, used := map[string]string{}, map[string]bool{}
	present := map[string]bool{} // groups of which a tensor was found
	var missing []TensorSpec
	for _, spec := range specs {
		name, err := find(spec, m)
		if err != nil {
			return nil, err
		}
		if name == "" {
			missing = append(missing, spec)
			continue
		}
		names[spec.Name] = name
		used[name] = true
		present[spec.Group] = true
	}
	missing = slices.DeleteFunc(missing, func(spec TensorSpec) bool {
		return spec.Group != "" && !present[spec.Group]
	})
	var extra []string
	for _, name := range m.Names() {
		if !used[name] && !ignores(ignored, name) && !isNF4Part(m, name) {
			extra = append(extra, name)
		}
	}
	if err := leftovers(missing, extra); err != nil {
		return nil, err
	}
	return names, nil
}

// find returns the name of one tensor in the file, "" if it is missing.
func find(spec TensorSpec, m *safetensors.Model) (string, error) {
	found := ""
	names := slices.Clone(spec.Candidates)
	for _, j := range spec.Joined {
		names = append(names, j.Name)
	}
	for _, name := range names {
		_, e, ok := m.Entry(name)
		if !ok {
			continue
		}
		if found != "" {
			return "", fmt.Errorf("tensor %s comes twice, as %s and as %s", spec.Path, found, name)
		}
		if spec.layer() && isNF4(m, name) { // whose shape is read with it
			found = name
			continue
		}
		part := spec.part(name)
		want, shape := spec.stored(part), slices.Clone(e.Shape)
		want[0] *= int64(part.Len)
		for len(shape) > len(want) { // a matrix for each expert
			shape[1] *= shape[0]
			shape = shape[1:]
		}
		if !slices.Equal(shape, want) {
			return "", fmt.Errorf("tensor %s has shape %v, config.json asks for %v", name, e.Shape, want)
		}
		switch e.DType {
		case safetensors.F32, safetensors.F16, safetensors.BF16:
		default:
			return "", fmt.Errorf("tensor %s has dtype %s, want F32, F16 or BF16", name, e.DType)
		}
		found = name
	}
	return found, nil
}

// listed is the number of names that an error lists before it only counts.
const listed = 3

// leftovers reports missing and unknown tensors together, because a wrong name appears as one of each.
func leftovers(missing []TensorSpec, extra []string) error {
	var parts []string
	if len(missing) > 0 {
		var list []string
		for _, spec := range missing[:min(listed, len(missing))] {
			list = append(list, fmt.Sprintf("%s %v", spec.Candidates[0], spec.Shape))
		}
		parts = append(parts, "missing tensors: "+strings.Join(list, ", ")+more(len(missing)))
	}
	if len(extra) > 0 {
		parts = append(parts, "unknown tensors: "+quoted(extra))
	}
	if len(parts) == 0 {
		return nil
	}
	return errors.New(strings.Join(parts, "; ") + " (does config.json belong to these weights?)")
}

func quoted(names []string) string {
	var list []string
	for _, name := range names[:min(listed, len(names))] {
		list = append(list, fmt.Sprintf("%.120q", name))
	}
	return strings.Join(list, ", ") + more(len(names))
}

func more(n int) string {
	if n <= listed {
		return ""
	}
	return fmt.Sprintf(" and %d more", n-listed)
}

// checkTied removes an output layer that repeats the embedding from names.
func checkTied(names map[string]string, m *safetensors.Model) error {
	head, embed := names["head.weight"], names["embed.weight"]
	if head == "" {
		return nil
	}
	same, err := m.Same(head, embed)
	if err != nil {
		return err
	}
	if !same {
		return fmt.Errorf("tensor %s differs from %s, but tie_word_embeddings of config.json says that they are one: set it to false to use both", head, embed)
	}
	delete(names, "head.weight")
	return nil
}
