package tinker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Datum is an example: tokens, and for each of them what its state should predict.
type Datum struct {
	Tokens []int32
	Inputs map[string]Tensor // of the loss, by name
}

// Input is a list of tokens in pieces.
type Input struct {
	Tokens []int32
}

// UnmarshalJSON implements [json.Unmarshaler].
func (p *Input) UnmarshalJSON(data []byte) error {
	var body struct {
		Chunks []struct {
			Type   string   `json:"type"`
			Tokens []*int32 `json:"tokens"`
		} `json:"chunks"`
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return err
	}
	p.Tokens = nil
	for i, c := range body.Chunks {
		if c.Type != "encoded_text" && c.Type != "" { // old clients leave out the type
			return fmt.Errorf("chunk %d is of type %.40q; only encoded_text is supported", i, c.Type)
		}
		for _, id := range c.Tokens {
			if id == nil {
				return fmt.Errorf("chunk %d: a token is null", i)
			}
			p.Tokens = append(p.Tokens, *id)
		}
	}
	return nil
}

// Examples ask for a forward pass, and for its gradient unless ForwardOnly.
type Examples struct {
	ModelID     string
	Seq         *int
	Data        []Datum
	Loss        string
	Config      map[string]float64 // of the loss
	ForwardOnly bool
}

// MarshalJSON implements [json.Marshaler].
func (e *Examples) MarshalJSON() ([]byte, error) {
	kind := "forward_backward"
	if e.ForwardOnly {
		kind = "forward"
	}
	input := map[string]any{"data": e.Data, "loss_fn": e.Loss}
	if len(e.Config) > 0 {
		input["loss_fn_config"] = e.Config
	}
	return json.Marshal(map[string]any{"type": kind, "model_id": e.ModelID, "seq_id": e.Seq, kind + "_input": input})
}

// MarshalJSON implements [json.Marshaler].
func (d Datum) MarshalJSON() ([]byte, error) {
	inputs := map[string]any{}
	for name, t := range d.Inputs {
		if name == targets {
			ids, err := t.tokens()
			if err != nil {
				return nil, err
			}
			inputs[name] = map[string]any{"data": ids, "dtype": "int64", "shape": t.Shape}
			continue
		}
		data := make([]float32, len(t.Data))
		for i, x := range t.Data {
			data[i] = float32(x)
		}
		inputs[name] = Floats(data, t.Shape...)
	}
	chunk := map[string]any{"type": "encoded_text", "tokens": d.Tokens}
	return json.Marshal(map[string]any{"model_input": map[string]any{"chunks": []any{chunk}}, "loss_fn_inputs": inputs})
}

// mostData limits the examples of a request: an empty one takes 2 bytes of a body, and 100 here.
const mostData = 1 << 16

var errData = fmt.Errorf("data has more than %d examples", mostData)

// dataList are the examples of a request.
type dataList []Datum

// UnmarshalJSON implements [json.Unmarshaler].
func (all *dataList) UnmarshalJSON(text []byte) error {
	*all = nil
	list := json.NewDecoder(bytes.NewReader(text))
	if token, err := list.Token(); err != nil || token == nil {
		return err
	} else if token != json.Delim('[') {
		return errors.New("data is not a list")
	}
	for list.More() {
		var d struct {
			Input  Input             `json:"model_input"`
			Inputs map[string]Tensor `json:"loss_fn_inputs"`
		}
		if err := list.Decode(&d); err != nil {
			return fmt.Errorf("data %d: %w", len(*all), err)
		}
		if *all = append(*all, Datum{d.Input.Tokens, d.Inputs}); len(*all) > mostData {
			return errData
		}
	}
	return nil
}

// UnmarshalJSON implements [json.Unmarshaler]. A forward pass has forward_input.
func (e *Examples) UnmarshalJSON(data []byte) error {
	type input struct {
		Data   dataList                   `json:"data"`
		Loss   string                     `json:"loss_fn"`
		Config map[string]json.RawMessage `json:"loss_fn_config"`
	}
	var body struct {
		ModelID  string `json:"model_id"`
		Seq      *int   `json:"seq_id"`
		Backward *input `json:"forward_backward_input"`
		Forward  *input `json:"forward_input"`
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return err
	}
	in := body.Backward
	if in == nil {
		in = body.Forward
	}
	if in == nil || body.Backward != nil && body.Forward != nil {
		return fmt.Errorf("want one of forward_backward_input and forward_input")
	}
	*e = Examples{ModelID: body.ModelID, Seq: body.Seq, Data: in.Data, Loss: in.Loss, Config: map[string]float64{}, ForwardOnly: body.Backward == nil}
	for name, value := range in.Config {
		var x float64
		if err := json.Unmarshal(value, &x); err != nil {
			return fmt.Errorf("loss_fn_config %.40q: %.40s is not a number", name, value)
		}
		e.Config[name] = x
	}
	return e.expand()
}

// expand makes all inputs dense.
func (e *Examples) expand() (err error) {
	elements := 0
	for i, d := range e.Data {
		for name, t := range d.Inputs {
			if t, err = t.dense(); err != nil {
				return fmt.Errorf("data %d: %.40q: %w", i, name, err)
			}
			if elements += len(t.Data); elements > mostElements {
				return fmt.Errorf("the inputs of the loss have more than %d elements", mostElements)
			}
			d.Inputs[name] = t
		}
	}
	return nil
}

// Targets are the tokens to predict: width of them for the state of each token.
func (d Datum) Targets() (ids []int32, width int, err error) {
	t, ok := d.Inputs[targets]
	switch {
	case !ok:
		return nil, 0, fmt.Errorf("target_tokens is missing")
	case len(d.Tokens) == 0:
		return nil, 0, fmt.Errorf("model_input has no tokens")
	case t.Shape[0] != len(d.Tokens) || len(t.Data) == 0:
		return nil, 0, fmt.Errorf("target_tokens has shape %v and model_input %d tokens; both must have one row per token", t.Shape, len(d.Tokens))
	}
	ids, err = t.tokens()
	if err != nil {
		return nil, 0, fmt.Errorf("target_tokens: %w", err)
	}
	return ids, len(ids) / len(d.Tokens), nil
}

// named returns an input of the loss, which must have the shape of the targets.
func (d Datum) named(name string) ([]float64, error) {
	t, ok := d.Inputs[name]
	if !ok {
		return nil, fmt.Errorf("%s is missing", name)
	}
	if targets := d.Inputs[targets]; !slices.Equal(t.Shape, targets.Shape) {
		return nil, fmt.Errorf("%s has shape %v, target_tokens %v", name, t.Shape, targets.Shape)
	}
	return t.Data, nil
}
