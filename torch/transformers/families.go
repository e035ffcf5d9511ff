package transformers

import (
	"slices"
	"strconv"
	"strings"
)

// A TensorSpec is a tensor the model has, or may have.
type TensorSpec struct {
	Name       string   // canonical
	Core       string   // what an encoder's core calls it, where it has a place for it
	Prefix     string   // what task models put before Name
	Shape      []int64  // weights of linear modules are [out, in]
	Transposed bool     // files hold a matrix as [in, out]
	Candidates []string // what a folder may call it
	// Group is "" for a tensor that must be there. The tensors of another group, the
	// "pooler" or the "head", are all there or all absent; those of "tied" repeat another.
	Group string
}

// stored is the shape that files give it.
func (s TensorSpec) stored() []int64 {
	if s.Transposed {
		return []int64{s.Shape[1], s.Shape[0]}
	}
	return s.Shape
}

// A moduleRow is one module of a family: a linear layer, an embedding or, with one dimension, a norm.
type moduleRow struct {
	layer  string // the core's name
	module string // transformers' name
	shape  string // of the weight
	bias   string // "", always, or the field of config.json that asks for one
}

const always = "+"

// Linear is a linear module that can carry LoRA; its weight is [Out, In].
type Linear struct {
	Name    string // of the module in transformers' model, as PEFT spells it
	Layer   string // what the core calls it
	In, Out int
}

// numbered puts a layer's number in the place of "N".
func numbered(name string, layer int) string {
	return strings.Replace(name, ".N.", "."+strconv.Itoa(layer)+".", 1)
}

// ignores reports that a folder's tensor is one of those that files carry and the model does
// not need. A "*" at an end of a pattern stands for any rest.
func ignores(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if stem, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(name, stem)
		}
		if tail, ok := strings.CutPrefix(pattern, "*"); ok {
			return strings.HasSuffix(name, tail)
		}
		return name == pattern
	})
}
