package transformers

import (
	"fmt"
	"slices"
)

// Linears lists the linear modules that can carry LoRA, in the order of a forward pass. The
// output layer is not among them.
func (c *CausalConfig) Linears() []Linear {
	var list []Linear
	for i := range c.NumHiddenLayers {
		for _, row := range c.family.rows {
			if len(row.shape) != 2 {
				continue
			}
			list = append(list, Linear{
				Name:  c.family.prefixes[0] + numbered(c.family.layers+row.module, i),
				Layer: numbered("layers.N."+row.layer, i),
				Out:   c.dim(rune(row.shape[0])), In: c.dim(rune(row.shape[1])),
			})
		}
	}
	return list
}

// DefaultTargets are PEFT's LoRA targets of the family when nobody names any: a module is meant
// by its full name or by an ending at a dot.
func (c *CausalConfig) DefaultTargets() []string { return slices.Clone(c.family.targets) }

// FanInFanOut says that files hold linear weights as [in, out]: PEFT's field of that name.
func (c *CausalConfig) FanInFanOut() bool { return c.family.conv1D }

// TensorNames lists the model's tensors by the core's names, in the order of a forward pass. The
// output layer is in the group "tied" where it is the embedding: files need not hold it.
func (c *CausalConfig) TensorNames() []TensorSpec {
	fam := c.family
	var specs []TensorSpec
	add := func(layer, module string, row moduleRow, transposed bool) {
		names := func(end string) []string {
			var all []string
			for _, prefix := range fam.prefixes {
				all = append(all, prefix+module+end)
			}
			return all
		}
		specs = append(specs, TensorSpec{
			Name: layer + ".weight", Shape: c.shape(row.shape), Transposed: transposed, Candidates: names(".weight"),
		})
		if row.bias == always || c.biases[row.bias] {
			specs = append(specs, TensorSpec{
				Name: layer + ".bias", Shape: c.shape(row.shape[:1]), Candidates: names(".bias"),
			})
		}
	}
	for _, row := range fam.base {
		if row.layer != "norm" {
			add(row.layer, row.module, row, false)
		}
	}
	for i := range c.NumHiddenLayers {
		for _, row := range fam.rows {
			add(numbered("layers.N."+row.layer, i), numbered(fam.layers+row.module, i), row, fam.conv1D && len(row.shape) == 2)
		}
	}
	norm := fam.base[len(fam.base)-1]
	add(norm.layer, norm.module, norm, false)
	specs = append(specs, c.headSpec())
	if fam.headBias {
		specs = append(specs, c.headPart(".bias", "V", ""))
	}
	return specs
}

// headSpec is the weight of the output layer.
func (c *CausalConfig) headSpec() TensorSpec {
	group := ""
	if c.TieWordEmbeddings {
		group = "tied"
	}
	return c.headPart(".weight", "VH", group)
}

func (c *CausalConfig) headPart(end, shape, group string) TensorSpec {
	spec := TensorSpec{Name: "head" + end, Shape: c.shape(shape), Group: group}
	for _, name := range c.family.heads {
		spec.Candidates = append(spec.Candidates, name+end)
	}
	return spec
}

func (c *CausalConfig) shape(letters string) []int64 {
	shape := make([]int64, len(letters))
	for i, letter := range letters {
		shape[i] = int64(c.dim(letter))
	}
	return shape
}

func (c *CausalConfig) dim(letter rune) int {
	switch letter {
	case 'V':
		return c.VocabSize
	case 'P':
		return c.MaxPositionEmbeddings
	case 'H':
		return c.HiddenSize
	case 'I':
		return c.IntermediateSize
	case 'G':
		return 2 * c.IntermediateSize
	case 'Q':
		return c.NumAttentionHeads * c.HeadDim
	case 'K':
		return c.NumKeyValueHeads * c.HeadDim
	case 'F':
		return (c.NumAttentionHeads + 2*c.NumKeyValueHeads) * c.HeadDim
	case 'D':
		return c.HeadDim
	}
	panic(fmt.Sprintf("transformers: no dimension %q", letter))
}
