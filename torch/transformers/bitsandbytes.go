package transformers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// bitsandbytes stores an NF4 weight as its codes, two per byte, under the weight's name, and these tensors next to it.
const nf4State = ".quant_state.bitsandbytes__nf4"

var nf4Parts = []string{nf4State, ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"}

// isNF4 reports whether bitsandbytes stored a weight in NF4.
func isNF4(files *safetensors.Model, name string) bool {
	_, _, ok := files.Entry(name + nf4State)
	return ok
}

// isNF4Part reports whether a tensor belongs to an NF4 weight.
func isNF4Part(files *safetensors.Model, name string) bool {
	return slices.ContainsFunc(nf4Parts, func(part string) bool {
		weight, ok := strings.CutSuffix(name, part)
		return ok && isNF4(files, weight)
	})
}

// readNF4 reads the codes of a weight and the absmax of each 64 values. Errors: another block, type or shape.
func readNF4(files *safetensors.Model, name string, shape []int64) (codes []byte, absmax []float32, err error) {
	fail := func(format string, args ...any) ([]byte, []float32, error) {
		return nil, nil, fmt.Errorf("tensor %s: %s", name, fmt.Sprintf(format, args...))
	}
	var state struct {
		QuantType       string  `json:"quant_type"`
		BlockSize       int64   `json:"blocksize"`
		Shape           []int64 `json:"shape"`
		NestedBlockSize int     `json:"nested_blocksize"`
		NestedOffset    float32 `json:"nested_offset"`
	}
	text, err := files.Bytes(name + nf4State)
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil {
		return fail("%v", err)
	}
	values := shape[0] * shape[1]
	switch {
	case state.QuantType != "nf4" || state.BlockSize != 64:
		return fail("blocks of %d in %.20q are not supported, want 64 in nf4", state.BlockSize, state.QuantType)
	case !slices.Equal(state.Shape, shape):
		return fail("has shape %v, config.json asks for %v", state.Shape, shape)
	case values%64 != 0:
		return fail("%d values are no blocks of 64", values)
	}
	if codes, err = files.Bytes(name); err != nil {
		return nil, nil, err
	}
	if _, nested, _ := files.Entry(name + ".nested_absmax"); nested.Name == "" {
		absmax, err = files.Float32s(name + ".absmax")
	} else {
		absmax, err = readNested(files, name, state.NestedBlockSize, state.NestedOffset)
	}
	if err == nil && (int64(len(codes)) != values/2 || int64(len(absmax)) != values/64) {
		return fail("%d codes and %d scales do not make %v", 2*len(codes), len(absmax), shape)
	}
	return codes, absmax, err
}

// readNested reads quantised scales: map[q]·nested + offset, with one nested scale per block.
func readNested(files *safetensors.Model, name string, block int, offset float32) ([]float32, error) {
	q, err := files.Bytes(name + ".absmax")
	if err != nil {
		return nil, err
	}
	table, err := files.Float32s(name + ".nested_quant_map")
	if err != nil {
		return nil, err
	}
	scales, err := files.Float32s(name + ".nested_absmax")
	if err != nil {
		return nil, err
	}
	if block < 1 || len(table) != 256 || len(scales)*block < len(q) {
		return nil, fmt.Errorf("tensor %s: %d nested scales of blocks of %d, and a map of %d, do not fit %d scales", name, len(scales), block, len(table), len(q))
	}
	absmax := make([]float32, len(q))
	for i, code := range q {
		absmax[i] = float32(table[code]*scales[i/block]) + offset
	}
	return absmax, nil
}

// nf4Rows returns an NF4 weight as rows that the core takes, with `in` values each: 64 rows fill complete blocks.
func nf4Rows(files *safetensors.Model, name string, shape []int64, in int64) (*torch.Var, error) {
	codes, absmax, err := readNF4(files, name, shape)
	if err != nil {
		return nil, err
	}
	rows, err := torch.JoinNF4(codes, absmax, in)
	if err != nil {
		return nil, err
	}
	return torch.NF4.Blocks(rows, shape[0]*shape[1]/in, in)
}

// nf4Values returns the values of an NF4 weight, row-major as stored.
func nf4Values(files *safetensors.Model, name string, shape []int64) ([]float32, error) {
	rows, err := nf4Rows(files, name, shape, 64)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	dense, err := rows.Dequantize(torch.NF4, 64, torch.F32)
	if err != nil {
		return nil, err
	}
	defer dense.Close()
	return dense.Read()
}
