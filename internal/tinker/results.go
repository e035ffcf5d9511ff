package tinker

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Outcome is the result of a request, which clients receive as JSON or, if it has a Proto, as a protocol buffer.
type Outcome interface{ Proto() []byte }

// ForwardResult has the log-probabilities of the targets of each example.
type ForwardResult struct {
	LogProbs [][]float32
	Widths   []int // targets for each token
	Metrics  map[string]float64
}

// outputType names the records of ForwardResult.
const outputType = "ArrayRecord"

func (r *ForwardResult) shape(i int) []int {
	if r.Widths[i] == 1 {
		return []int{len(r.LogProbs[i])}
	}
	return []int{len(r.LogProbs[i]) / r.Widths[i], r.Widths[i]}
}

// MarshalJSON implements [json.Marshaler].
func (r *ForwardResult) MarshalJSON() ([]byte, error) {
	outputs := make([]map[string]any, len(r.LogProbs))
	for i, l := range r.LogProbs {
		outputs[i] = map[string]any{"logprobs": Floats(l, r.shape(i)...)}
	}
	return json.Marshal(map[string]any{"loss_fn_output_type": outputType, "loss_fn_outputs": outputs, "metrics": r.Metrics})
}

// Proto is a ForwardBackwardOutput. Examples with equally many targets for a token share a record.
func (r *ForwardResult) Proto() (message []byte) {
	message = appendBytes(message, 1, []byte(outputType))
	for from := 0; from < len(r.LogProbs); {
		to := from
		for to < len(r.LogProbs) && r.Widths[to] == r.Widths[from] {
			to++
		}
		message = appendBytes(message, 2, r.record(from, to))
		from = to
	}
	for _, name := range slices.Sorted(maps.Keys(r.Metrics)) {
		message = appendBytes(message, 3, appendMetric(name, r.Metrics[name]))
	}
	return message
}

// UnmarshalJSON reads LogProbs and Metrics.
func (r *ForwardResult) UnmarshalJSON(data []byte) error {
	var body struct {
		Outputs []struct {
			LogProbs struct {
				Data []float32 `json:"data"`
			} `json:"logprobs"`
		} `json:"loss_fn_outputs"`
		Metrics map[string]float64 `json:"metrics"`
	}
	err := json.Unmarshal(data, &body)
	*r = ForwardResult{Metrics: body.Metrics}
	for _, o := range body.Outputs {
		r.LogProbs = append(r.LogProbs, o.LogProbs.Data)
	}
	return err
}

// record is an ArrayRecord of examples.
func (r *ForwardResult) record(from, to int) []byte {
	var values, offsets []byte
	for i := from; i < to; i++ {
		offsets = binary.LittleEndian.AppendUint64(offsets, uint64(len(values)))
		values = appendFloats(values, r.LogProbs[i])
	}
	offsets = binary.LittleEndian.AppendUint64(offsets, uint64(len(values)))
	tensor := appendBytes(nil, 1, values)
	tensor = appendBytes(tensor, 2, offsets)
	tensor = appendNumber(tensor, 3, typeFloat32)
	if width := r.Widths[from]; width > 1 {
		tensor = appendBytes(tensor, 4, protowire.AppendVarint(nil, uint64(width)))
	}
	record := appendBytes(nil, 1, []byte(outputType))
	record = appendBytes(record, 2, appendBytes(appendBytes(nil, 1, []byte("logprobs")), 2, tensor))
	return appendNumber(record, 3, uint64(to-from))
}

// Sequence is a completion.
type Sequence struct {
	Reason   string    `json:"stop_reason"` // stop or length
	Tokens   []int32   `json:"tokens"`
	LogProbs []float32 `json:"logprobs"`
}

// SampleResult has completions of a prompt.
type SampleResult struct {
	Sequences []Sequence `json:"sequences"`
	Prompt    []float32  `json:"-"` // log π of the prompt's tokens, the first of which has none; nil unless asked for
	Top       []Top      `json:"-"` // for each token of the prompt; nil unless asked for
	Width     int        `json:"-"` // of Top
}

// Top are the most likely tokens in place of a token.
type Top struct {
	IDs      []int32
	LogProbs []float32
}

// MarshalJSON implements [json.Marshaler].
func (r *SampleResult) MarshalJSON() ([]byte, error) {
	sequences := slices.Clone(r.Sequences)
	for i := range sequences {
		sequences[i].LogProbs = finite(sequences[i].LogProbs)
	}
	body := map[string]any{"type": "sample", "sequences": sequences}
	if r.Prompt != nil {
		logs := make([]any, len(r.Prompt))
		for i, l := range finite(r.Prompt) {
			if i > 0 {
				logs[i] = l
			}
		}
		body["prompt_logprobs"] = logs
	}
	if r.Top != nil {
		all := make([][][2]any, len(r.Top))
		for i, top := range r.Top {
			for j, l := range finite(top.LogProbs) {
				all[i] = append(all[i], [2]any{top.IDs[j], l})
			}
		}
		body["topk_prompt_logprobs"] = all
	}
	return json.Marshal(body)
}

// Proto is a SampleResponse.
func (r *SampleResult) Proto() (message []byte) {
	for _, s := range r.Sequences {
		one := []byte{}
		if s.Reason == "length" {
			one = appendNumber(one, 1, 1)
		}
		one = appendBytes(one, 2, appendInts(nil, s.Tokens))
		message = appendBytes(message, 1, appendBytes(one, 3, appendFloats(nil, s.LogProbs)))
	}
	if r.Prompt != nil {
		logs := slices.Clone(r.Prompt)
		logs[0] = float32(math.NaN())
		message = appendBytes(message, 2, appendFloats(nil, logs))
	}
	if r.Top != nil {
		var ids, logs []byte
		for _, top := range r.Top {
			missing := r.Width - len(top.IDs)
			ids = appendInts(appendInts(ids, top.IDs), make([]int32, missing))
			logs = appendFloats(appendFloats(logs, top.LogProbs), slices.Repeat([]float32{-99999}, missing))
		}
		top := appendBytes(appendBytes(nil, 1, ids), 2, logs)
		message = appendBytes(message, 3, appendNumber(appendNumber(top, 3, uint64(r.Width)), 4, uint64(len(r.Top))))
	}
	return message
}

// Reply is a result that only JSON can hold.
type Reply map[string]any

// Proto implements [Outcome].
func (Reply) Proto() []byte { return nil }

func appendBytes(message []byte, number protowire.Number, data []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(message, number, protowire.BytesType), data)
}

func appendNumber(message []byte, number protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(message, number, protowire.VarintType), value)
}

// appendMetric makes an item of a map from names to numbers.
func appendMetric(name string, x float64) []byte {
	entry := protowire.AppendTag(appendBytes(nil, 1, []byte(name)), 2, protowire.Fixed64Type)
	return protowire.AppendFixed64(entry, math.Float64bits(x))
}

func appendInts(data []byte, values []int32) []byte {
	for _, x := range values {
		data = binary.LittleEndian.AppendUint32(data, uint32(x))
	}
	return data
}

func appendFloats(data []byte, values []float32) []byte {
	for _, x := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
	}
	return data
}
