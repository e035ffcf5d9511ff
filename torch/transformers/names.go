package transformers

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch"
)

// rowsOf lists the modules of a layer.
func (c *Config) rowsOf(layer int) []moduleRow {
	fam := families[c.ModelType]
	rows := slices.Clone(fam.rows)
	if c.kinds != nil {
		for _, kind := range c.kinds[layer] {
			rows = append(rows, fam.kinds[kind]...)
		}
	}
	return rows
}

// Linears lists the linear modules that can have LoRA adapters, in the order of a forward pass. The output layer is
// not one of them.
func (c *Config) Linears() []Linear {
	fam := families[c.ModelType]
	var list []Linear
	if c.inputSize > 0 {
		at := slices.IndexFunc(fam.base, func(row moduleRow) bool { return row.layer == "inputs_proj" })
		list = append(list, Linear{Name: fam.prefixes[0] + fam.base[at].module, Layer: "inputs_proj", Out: c.dim('Y', 0), In: c.HiddenSize})
	}
	for i := range c.storedLayers() {
		for _, row := range c.rowsOf(i) {
			if !row.adaptable() {
				continue
			}
			list = append(list, Linear{
				Name:  fam.prefixes[0] + numbered(fam.layers+row.module, i),
				Layer: numbered("layers.N."+row.layer, i),
				Out:   c.dim(rune(row.shape[0]), i), In: c.dim(rune(row.shape[1]), i),
			})
		}
	}
	return list
}

// ExpertLinears lists the layers' tensors of all experts that can have LoRA adapters, by transformers' names, which files need not
// have. They are named by lora.ExpertParameters.
func (c *Config) ExpertLinears() (list []Linear) {
	fam := families[c.ModelType]
	for i := range c.storedLayers() {
		rows := c.rowsOf(i)
		at := slices.IndexFunc(rows, func(row moduleRow) bool { return row.layer == "experts.E.gate" })
		if at < 0 {
			continue
		}
		module, _, _ := strings.Cut(rows[at].module, ".E.")
		name := fam.prefixes[0] + numbered(fam.layers, i) + cmp.Or(fam.experts, module)
		layer, width := numbered("layers.N.experts.", i), c.core.ExpertSize
		list = append(list,
			Linear{Name: name + ".gate_up_proj", Layer: layer + "gate_up", Out: 2 * width, In: c.HiddenSize, Experts: c.NumExperts},
			Linear{Name: name + ".down_proj", Layer: layer + "down", Out: c.HiddenSize, In: width, Experts: c.NumExperts})
	}
	return list
}

// RouteWidth is the number of experts that a token passes in all layers.
func (c *Config) RouteWidth() int {
	return len(c.ExpertLinears()) / 2 * c.core.ExpertsPerToken
}

// WovenExperts reports whether rows of gate and up take turns in a tensor of ExpertLinears.
func (c *Config) WovenExperts() bool { return families[c.ModelType].woven }

// ExpertModules are the last parts of the names of experts' linear modules.
func (c *Config) ExpertModules() (names []string) {
	for _, row := range families[c.ModelType].kinds[sparse] {
		if strings.HasPrefix(row.layer, "experts.") && c.NumExperts > 0 {
			names = append(names, strings.TrimPrefix(path.Ext(row.module), "."))
		}
	}
	return names
}

// DefaultTargets are the family's default LoRA targets in PEFT. A target is a full name, or a suffix after a dot.
func (c *Config) DefaultTargets() []string { return slices.Clone(families[c.ModelType].targets) }

// AllTargets are LoRA targets that select every one of Linears: what follows the layer's number in their names, or the last part.
func (c *Config) AllTargets() (targets []string) { return c.TargetsOf(true, true) }

// TargetsOf are those that select the linear layers of attention, of the MLPs, or both.
func (c *Config) TargetsOf(attention, mlp bool) (targets []string) {
	for _, linear := range c.Linears() {
		ofMLP := slices.ContainsFunc([]string{"up", "gate", "down"}, func(end string) bool { return strings.HasSuffix(linear.Layer, end) })
		if ofMLP && !mlp || !ofMLP && !attention {
			continue
		}
		parts := strings.Split(linear.Name, ".")
		number := slices.IndexFunc(parts, func(part string) bool { return strings.Trim(part, "0123456789") == "" })
		if number < 0 {
			number = len(parts) - 2
		}
		if target := strings.Join(parts[number+1:], "."); !slices.Contains(targets, target) {
			targets = append(targets, target)
		}
	}
	return targets
}

// FanInFanOut reports whether files store linear weights as [in, out]; PEFT's field of that name.
func (c *Config) FanInFanOut() bool { return families[c.ModelType].conv1D }

// Prefix comes before the encoder's names in task models such as a sequence classifier: "bert.".
func (c *Config) Prefix() string { return families[c.ModelType].prefixOf() }

// TensorNames lists the model's tensors by the core's names, in the order of a forward pass. The output layer has
// group "tied" if it is the embedding; files need not contain it.
func (c *Config) TensorNames() []TensorSpec {
	fam := families[c.ModelType]
	var specs []TensorSpec
	for _, all := range fam.base {
		for _, row := range all.each(c.streams - 1) {
			if row.layer != "norm" {
				specs = append(specs, c.specs(row, 0, "")...)
			}
		}
	}
	for i := range c.storedLayers() {
		for _, all := range c.rowsOf(i) {
			for e, row := range all.each(c.NumExperts) {
				row.layer, row.module = "layers.N."+row.layer, fam.layers+row.module
				specs = append(specs, c.join(c.specs(row, i, ""), all.module, e, i)...)
			}
		}
	}
	for _, row := range fam.base {
		if row.layer == "norm" {
			specs = append(specs, c.specs(row, 0, "")...)
		}
	}
	if e := fam.encoder; e != nil {
		for _, row := range e.pooler {
			specs = append(specs, c.specs(row, 0, "pooler")...)
		}
		for _, row := range e.head {
			specs = append(specs, c.specs(row, 0, "head")...)
		}
		return specs
	}
	specs = append(specs, c.headSpec())
	if fam.headBias {
		specs = append(specs, c.headPart(".bias", "V", ""))
	}
	return specs
}

// specs are the tensors of one module, in layer number layer if its name has an "N".
func (c *Config) specs(row moduleRow, layer int, group string) []TensorSpec {
	fam := families[c.ModelType]
	name := numbered(row.layer, layer)
	if name == fam.without || name == "positions" && c.withoutPositions || name == "types" && c.TypeVocabSize == 0 ||
		name == "embed_proj" && c.widened() == 0 || strings.HasPrefix(name, "inputs") && c.inputSize == 0 || name == "distances_norm" && !c.normedDistances {
		return nil
	}
	prefixes, prefix := fam.prefixes, fam.prefixOf()
	if group == "head" || group == "pooler" && fam.encoder.plainPooler {
		prefixes, prefix = []string{""}, ""
	}
	tensor := func(end, shape string) TensorSpec {
		module := numbered(row.module, layer) + end
		spec := TensorSpec{
			Name: name + end, Path: prefixes[0] + module, Prefix: prefix, Shape: c.shape(shape, layer), Group: group,
			Transposed: fam.conv1D && strings.HasPrefix(name, "layers.") && len(shape) == 2,
		}
		for _, p := range prefixes {
			spec.Candidates = append(spec.Candidates, p+module)
			for now, old := range fam.old {
				if stem, ok := strings.CutSuffix(module, now); ok {
					spec.Candidates = append(spec.Candidates, p+stem+old)
				}
			}
		}
		return spec
	}
	specs := []TensorSpec{tensor(".weight", row.shape)}
	if row.bias == always || c.biases[row.bias] {
		specs = append(specs, tensor(".bias", row.shape[:1]))
	}
	return specs
}

// join adds the tensors of a folder that hold those of one module, whose name has an "E" if it is that of expert e.
func (c *Config) join(specs []TensorSpec, module string, e, layer int) []TensorSpec {
	fam := families[c.ModelType]
	for i := range specs {
		end := path.Ext(specs[i].Name)
		for joint, parts := range fam.joined {
			at := slices.IndexFunc(parts, func(part string) bool { return strings.HasSuffix(module+end, part) })
			if at < 0 {
				continue
			}
			j := Joined{At: at, Len: len(parts), Every: 1}
			switch {
			case fam.woven && strings.Contains(module, ".E."):
				j = Joined{At: e, Len: c.NumExperts, First: at, Every: len(parts), Turned: len(specs[i].Shape) == 2}
			case strings.Contains(module, ".E."):
				j.At, j.Len = e*len(parts)+at, c.NumExperts*len(parts)
			}
			for _, p := range fam.prefixes {
				j.Name = p + numbered(fam.layers+strings.TrimSuffix(module+end, parts[at])+joint, layer)
				specs[i].Joined = append(specs[i].Joined, j)
			}
		}
	}
	return specs
}

// headSpec is the weight of the output layer.
func (c *Config) headSpec() TensorSpec {
	group := ""
	if c.TieWordEmbeddings {
		group = "tied"
	}
	return c.headPart(".weight", "VH", group)
}

func (c *Config) headPart(end, shape, group string) TensorSpec {
	spec := TensorSpec{Name: "head" + end, Path: families[c.ModelType].heads[0] + end, Shape: c.shape(shape, 0), Group: group}
	for _, name := range families[c.ModelType].heads {
		spec.Candidates = append(spec.Candidates, name+end)
	}
	return spec
}

func (c *Config) shape(letters string, layer int) []int64 {
	shape := make([]int64, len(letters))
	for i, letter := range letters {
		shape[i] = int64(c.dim(letter, layer))
	}
	return shape
}

// layerShape is what a layer has of its own, or the model's sizes.
func (c *Config) layerShape(layer int) torch.LayerShape {
	if c.core.Shapes != nil {
		return c.core.Shapes[layer]
	}
	return torch.LayerShape{KVHeads: c.kvHeads(), HeadDim: c.headDim(), IntermediateSize: c.IntermediateSize, KeysOf: layer}
}

func (c *Config) dim(letter rune, layer int) int {
	own := c.layerShape(layer)
	switch letter {
	case 'V':
		return c.VocabSize
	case 'P':
		return c.MaxPositionEmbeddings
	case 'T':
		return c.TypeVocabSize
	case 'E':
		return cmp.Or(c.EmbeddingSize, c.HiddenSize)
	case 'R':
		return c.distanceRows
	case 'N':
		return c.NumAttentionHeads
	case 'H':
		return c.HiddenSize
	case 'I':
		return own.IntermediateSize
	case 'G':
		return 2 * own.IntermediateSize
	case 'Q':
		return c.NumAttentionHeads * own.HeadDim
	case 'K':
		return own.KVHeads * own.HeadDim
	case 'F':
		return (c.NumAttentionHeads + 2*own.KVHeads) * own.HeadDim
	case 'C':
		return c.NumLabels
	case 'D':
		return own.HeadDim
	case 'X':
		return c.NumExperts
	case 'M':
		return c.core.ExpertSize
	case 'S':
		return c.core.SharedSize
	case 'B':
		return 3 * c.HiddenSize
	case 'L':
		return c.taps
	case 'J':
		return 2 * c.NumAttentionHeads * own.HeadDim
	case 'Z':
		return c.inputSize
	case 'Y':
		return c.inputSize * c.NumHiddenLayers
	case 'r':
		return c.inputRows
	case 'l':
		return c.laurelRank
	case 's':
		return c.streams
	case 't':
		return c.streams * c.streams
	case 'A':
		return c.delta.values
	case 'O':
		return c.delta.valueDim
	case 'W':
		return c.delta.values * c.delta.valueDim
	case 'U':
		return 2*c.delta.keys*c.delta.keyDim + c.delta.values*c.delta.valueDim
	case '1':
		return 1
	}
	panic(fmt.Sprintf("transformers: no dimension %q", letter))
}
