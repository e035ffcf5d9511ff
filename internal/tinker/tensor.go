// Package tinker has the messages of the Tinker API, a protocol for training language models over HTTP, as the SDK
// tinker 0.38.0 and older ones send them: JSON, and protocol buffers for examples, their log-probabilities and samples. It
// also has the API's losses.
package tinker

import (
	"encoding/json"
	"fmt"
	"math"
)

// Tensor is a dense array of numbers. Each is an int64 below 2⁵³ or a float32.
type Tensor struct {
	Data  []float64
	Shape []int // of Data, row by row

	starts, column []int64 // of compressed rows, until dense; nil if it always was
}

// mostElements limits the dense tensors that short compressed ones describe, of a request.
const mostElements = 1 << 22

// dense checks the shape and fills in the zeros that compressed rows leave out.
func (s Tensor) dense() (Tensor, error) {
	if len(s.Shape) == 0 {
		s.Shape = []int{len(s.Data)}
	}
	n := 1
	for _, d := range s.Shape {
		if d < 0 || d > mostElements || n > mostElements/max(1, d) {
			return Tensor{}, fmt.Errorf("shape %v is negative or has more than %d elements", clip(s.Shape), mostElements)
		}
		n *= d
	}
	if s.starts == nil && s.column == nil {
		if n != len(s.Data) || len(s.Shape) > 2 {
			return Tensor{}, fmt.Errorf("shape %v does not fit %d numbers in one or two dimensions", clip(s.Shape), len(s.Data))
		}
		return Tensor{Data: s.Data, Shape: s.Shape}, nil
	}
	if len(s.Shape) != 2 || len(s.starts) != s.Shape[0]+1 || len(s.column) != len(s.Data) {
		return Tensor{}, fmt.Errorf("compressed rows of shape %v have %d row starts, %d columns and %d numbers", clip(s.Shape), len(s.starts), len(s.column), len(s.Data))
	}
	t := Tensor{Data: make([]float64, n), Shape: s.Shape}
	at := int64(0)
	for row := range s.Shape[0] {
		from, to := s.starts[row], s.starts[row+1]
		if from != at || to < from || to > int64(len(s.Data)) {
			return Tensor{}, fmt.Errorf("row %d of compressed rows has numbers %d to %d of %d", row, from, to, len(s.Data))
		}
		for ; at < to; at++ {
			if c := s.column[at]; c < 0 || c >= int64(s.Shape[1]) {
				return Tensor{}, fmt.Errorf("column %d of compressed rows is outside of shape %v", c, s.Shape)
			}
			t.Data[row*s.Shape[1]+int(s.column[at])] = s.Data[at]
		}
	}
	if at != int64(len(s.Data)) {
		return Tensor{}, fmt.Errorf("compressed rows end after %d of %d numbers", at, len(s.Data))
	}
	return t, nil
}

// Vector is a tensor of one dimension.
func Vector[T int32 | float32](values []T) Tensor {
	t := Tensor{Data: make([]float64, len(values)), Shape: []int{len(values)}}
	for i, x := range values {
		t.Data[i] = float64(x)
	}
	return t
}

// clip is the beginning of a shape that an error quotes.
func clip(shape []int) []int { return shape[:min(len(shape), 8)] }

// UnmarshalJSON implements [json.Unmarshaler]. Compressed rows stay compressed.
func (t *Tensor) UnmarshalJSON(data []byte) error {
	var body struct {
		Data    []float64 `json:"data"`
		Type    string    `json:"dtype"`
		Shape   []int     `json:"shape"`
		Starts  []int64   `json:"sparse_crow_indices"`
		Columns []int64   `json:"sparse_col_indices"`
	}
	err := json.Unmarshal(data, &body)
	if err == nil && body.Type != "" && body.Type != "float32" && body.Type != "int64" {
		err = fmt.Errorf("dtype %.40q is not float32 or int64", body.Type)
	}
	*t = Tensor{body.Data, body.Shape, body.Starts, body.Columns}
	return err
}

// Floats makes the JSON of a tensor of float32.
func Floats(data []float32, shape ...int) map[string]any {
	return map[string]any{"data": finite(data), "dtype": "float32", "shape": shape}
}

// finite replaces what JSON cannot hold: the log-probability of an impossible token is the lowest float32.
func finite(data []float32) []float32 {
	out := make([]float32, len(data))
	for i, x := range data {
		if out[i] = x; math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			out[i] = -math.MaxFloat32
		}
	}
	return out
}

// tokens converts whole numbers to token ids.
func (t Tensor) tokens() ([]int32, error) {
	ids := make([]int32, len(t.Data))
	for i, x := range t.Data {
		if x != math.Trunc(x) || x < 0 || x > math.MaxInt32 {
			return nil, fmt.Errorf("%v at index %d is not a token id", x, i)
		}
		ids[i] = int32(x)
	}
	return ids, nil
}
