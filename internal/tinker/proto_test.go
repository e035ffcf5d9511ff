package tinker

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// message makes a message of the SDK's descriptor.
func message(t testing.TB, name string) *dynamicpb.Message {
	t.Helper()
	file := &descriptorpb.FileDescriptorProto{}
	must.Do(t, proto.Unmarshal([]byte(must.Read(t, "testdata/tinker_public.desc")), file))
	d := must.Get(protodesc.NewFile(file, nil))(t)
	return dynamicpb.NewMessage(d.Messages().ByName(protoreflect.Name(name)))
}

func set(m protoreflect.Message, name string, value any) {
	m.Set(m.Descriptor().Fields().ByName(protoreflect.Name(name)), protoreflect.ValueOf(value))
}

func get(m protoreflect.Message, name string) protoreflect.Value {
	return m.Get(m.Descriptor().Fields().ByName(protoreflect.Name(name)))
}

// sub adds an element to a list, or makes a message field.
func sub(m protoreflect.Message, name string) protoreflect.Message {
	d := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	if d.IsList() {
		return m.Mutable(d).List().AppendMutable().Message()
	}
	return m.Mutable(d).Message()
}

func entry(m protoreflect.Message, name, key string) protoreflect.Message {
	d := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	return m.Mutable(d).Map().Mutable(protoreflect.ValueOfString(key).MapKey()).Message()
}

// TestRequest sends the same examples as JSON and as the SDK's protocol buffer.
func TestRequest(t *testing.T) {
	const body = `{"model_id":"m","seq_id":7,"forward_backward_input":{"loss_fn":"ppo","loss_fn_config":{"clip_low_threshold":0.5},"data":[
{"model_input":{"chunks":[{"type":"encoded_text","tokens":[5]},{"tokens":[6]}]},
 "loss_fn_inputs":{"target_tokens":{"data":[3,0,4,9],"dtype":"int64","shape":[2,2]},"advantages":{"data":[0.5,0,0,-1.5],"dtype":"float32","shape":[2,2]}}}]}}`
	fromJSON := must.Into[Examples](t, json.Unmarshal, []byte(body))

	m := message(t, "ForwardBackwardRequest")
	set(m, "model_id", "m")
	set(m, "seq_id", int32(7))
	set(m, "loss_fn", "ppo")
	config := m.Descriptor().Fields().ByName("loss_fn_config")
	m.Mutable(config).Map().Set(protoreflect.ValueOfString("clip_low_threshold").MapKey(), protoreflect.ValueOfFloat64(0.5))
	set(entry(m, "loss_fn_config_v2", "clip_low_threshold"), "number", 0.5)
	d := sub(m, "data")
	for _, id := range []int32{5, 6} {
		set(sub(sub(d, "model_input"), "encoded_text"), "tokens", appendInts(nil, []int32{id}))
	}
	shape := func(tensor protoreflect.Message) {
		list := tensor.Mutable(tensor.Descriptor().Fields().ByName("shape")).List()
		list.Append(protoreflect.ValueOfInt64(2))
		list.Append(protoreflect.ValueOfInt64(2))
	}
	longs := func(values ...int32) (data []byte) {
		for _, x := range values {
			data = appendInts(data, []int32{x, 0})
		}
		return data
	}
	tensor := entry(d, "loss_fn_inputs", "target_tokens")
	set(tensor, "dtype", protoreflect.EnumNumber(typeInt64))
	shape(tensor)
	rows := sub(tensor, "sparse_csr")
	set(rows, "values", longs(3, 4, 9))
	set(rows, "crow_indices", longs(0, 1, 3))
	set(rows, "col_indices", longs(0, 0, 1))
	tensor = entry(d, "loss_fn_inputs", "advantages")
	set(tensor, "dtype", protoreflect.EnumNumber(typeFloat32))
	shape(tensor)
	set(tensor, "dense", appendFloats(nil, []float32{0.5, 0, 0, -1.5}))

	data := must.Get(proto.Marshal(m))(t)
	var fromProto Examples
	must.Do(t, fromProto.UnmarshalProto(data))
	expect.True(t, reflect.DeepEqual(fromJSON, fromProto), "JSON %+v, protocol buffer %+v", fromJSON, fromProto)
	var again [2]Examples // as the client sends them
	must.Do(t, again[0].UnmarshalProto(fromJSON.Proto()))
	must.Do(t, json.Unmarshal(must.Get(json.Marshal(&fromJSON))(t), &again[1]))
	for i, got := range again {
		expect.True(t, reflect.DeepEqual(fromJSON, got), "sent %+v, received %+v in form %d", fromJSON, got, i)
	}
	must.Do(t, proto.Unmarshal(fromJSON.Proto(), message(t, "ForwardBackwardRequest")))
	for n := range data { // a message that was cut is an error or another request, and nothing worse
		_ = new(Examples).UnmarshalProto(data[:n])
	}
}

// TestResults reads results with the SDK's descriptor.
func TestResults(t *testing.T) {
	forward := &ForwardResult{LogProbs: [][]float32{{-1, -2}, {-3}, {-4, -5}}, Widths: []int{1, 1, 2}, Metrics: map[string]float64{"loss:sum": 3}}
	m := message(t, "ForwardBackwardOutput")
	must.Do(t, proto.Unmarshal(forward.Proto(), m))
	var got [][]float32
	for records, i := get(m, "loss_fn_outputs").List(), 0; i < records.Len(); i++ {
		tensor := get(records.Get(i).Message(), "fields").Map().Get(protoreflect.ValueOfString("logprobs").MapKey()).Message()
		values := must.Get(numbers(get(tensor, "data").Bytes(), 4, int32Of))(t)
		ends := must.Get(numbers(get(tensor, "offsets").Bytes(), 8, int64Of))(t)
		expect.Same(t, int64(len(ends)-1), get(records.Get(i).Message(), "num_datums").Int(), "examples of a record")
		expect.Same(t, i, get(tensor, "trailing_shape").List().Len(), "further dimensions")
		for j := range len(ends) - 1 {
			var one []float32
			for _, bits := range values[ends[j]/4 : ends[j+1]/4] {
				one = append(one, math.Float32frombits(uint32(bits)))
			}
			got = append(got, one)
		}
	}
	expect.Equal(t, forward.LogProbs, got)
	for _, read := range []func(r *ForwardResult) error{
		func(r *ForwardResult) error { return r.UnmarshalProto(forward.Proto()) },
		func(r *ForwardResult) error { return json.Unmarshal(must.Get(json.Marshal(forward))(t), r) },
	} {
		var r ForwardResult
		must.Do(t, read(&r))
		expect.Equal(t, &ForwardResult{LogProbs: forward.LogProbs, Metrics: forward.Metrics}, &r)
	}
	expect.Same(t, 3.0, get(m, "metrics").Map().Get(protoreflect.ValueOfString("loss:sum").MapKey()).Float(), "loss")

	sample := &SampleResult{
		Sequences: []Sequence{{"length", []int32{1, 2}, []float32{-1, -2}}, {"stop", []int32{3}, []float32{-4}}},
		Prompt:    []float32{0, -1}, Top: []Top{{}, {[]int32{8}, []float32{-1}}}, Width: 1,
	}
	m = message(t, "SampleResponse")
	must.Do(t, proto.Unmarshal(sample.Proto(), m))
	backwards := appendBytes(appendBytes(nil, 1, make([]byte, 8)), 2, appendInts(nil, []int32{8, 0, 0, 0}))
	expect.Error(t, new(ForwardResult).add(backwards), "bytes 8 to 0 of 8")
	var received SampleResult
	must.Do(t, received.UnmarshalProto(sample.Proto()))
	expect.Equal(t, sample.Sequences, received.Sequences)
	first := get(m, "sequences").List().Get(0).Message()
	expect.Same(t, 1, get(first, "stop_reason").Enum(), "reason of the first completion")
	expect.Equal(t, appendInts(nil, []int32{1, 2}), get(first, "tokens").Bytes())
	expect.Equal(t, appendFloats(nil, []float32{float32(math.NaN()), -1}), get(m, "prompt_logprobs").Bytes())
	expect.Equal(t, appendInts(nil, []int32{0, 8}), get(get(m, "topk_prompt_logprobs").Message(), "token_ids").Bytes())
	expect.Same(t, `{"prompt_logprobs":[null,-1],"sequences":[{"stop_reason":"length","tokens":[1,2],"logprobs":[-1,-2]},`+
		`{"stop_reason":"stop","tokens":[3],"logprobs":[-4]}],"topk_prompt_logprobs":[null,[[8,-1]]],"type":"sample"}`,
		string(must.Get(json.Marshal(sample))(t)), "JSON")
}

func TestBadExamples(t *testing.T) {
	for body, want := range map[string]string{
		`{"forward_input":{"data":[{"model_input":{"chunks":[{"type":"image"}]}}]}}`:                                                            "only encoded_text",
		`{"forward_input":{"data":[{"model_input":{"chunks":[{"tokens":[null]}]}}]}}`:                                                           "null",
		`{"forward_input":{"data":[{"loss_fn_inputs":{"a":{"data":[1],"shape":[2]}}}]}}`:                                                        "does not fit 1 numbers",
		`{"forward_input":{"data":[{"loss_fn_inputs":{"a":{"data":[1],"shape":[4194304,4194304]}}}]}}`:                                          "more than",
		`{"forward_input":{"data":[{"loss_fn_inputs":{"a":{"data":[1],"dtype":"bool"}}}]}}`:                                                     "dtype",
		`{"forward_input":{"data":[{"loss_fn_inputs":{"a":{"data":[1],"shape":[1,2],"sparse_crow_indices":[0,1]}}}]}}`:                          "compressed rows",
		`{"forward_input":{"data":[{"loss_fn_inputs":{"a":{"data":[1],"shape":[1,2],"sparse_crow_indices":[0,1],"sparse_col_indices":[2]}}}]}}`: "column 2",
		`{"forward_input":{"data":[{"loss_fn_inputs":{"a":{"data":[1],"shape":[1,2],"sparse_crow_indices":[0,5],"sparse_col_indices":[0]}}}]}}`: "0 to 5 of 1",
		`{"forward_input":{"loss_fn_config":{"a":"b"}}}`:                                                                                        "not a number",
		`{"forward_input":{"data":{}}}`:                                          "not a list",
		`{"forward_input":{"data":[{},[]]}}`:                                     "data 1",
		`{"forward_input":{"data":[{}` + strings.Repeat(",{}", mostData) + `]}}`: "more than 65536 examples",
		`{}`: "forward_backward_input",
	} {
		expect.Error(t, json.Unmarshal([]byte(body), new(Examples)), want)
	}
	expect.Error(t, new(Examples).UnmarshalProto([]byte(strings.Repeat("\x1a\x00", mostData+1))), "more than 65536 examples")
}

// TestLosses compares weights with differences of the loss, and refuses bad inputs by name.
func TestLosses(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name := range losses {
		for range 200 {
			l, q, a := -3*random.Float64(), -3*random.Float64(), random.NormFloat64()
			one := func(x float64) Tensor { return Tensor{Data: []float64{x}, Shape: []int{1}} }
			d := Datum{[]int32{1}, map[string]Tensor{"target_tokens": one(4), "advantages": one(a), "logprobs": one(q)}}
			if name == "cross_entropy" {
				d.Inputs = map[string]Tensor{"target_tokens": one(4), "weights": one(a)}
			}
			x := must.Get(NewLoss(name, nil, d))(t)
			at := func(l float64) float64 { loss, _ := x.function.term(l, q, a, x.config); return loss }
			const h = 1e-6
			want := -(at(l+h) - at(l-h)) / (2 * h)
			if name == "cispo" { // the ratio has no gradient
				r := min(max(math.Exp(l-q), 0.8), 1.2)
				want = r * a
			}
			_, weights := x.At([]int{0}, []float32{float32(l)})
			if kink := math.Abs(math.Exp(l-q)-0.8) < 1e-3 || math.Abs(math.Exp(l-q)-1.2) < 1e-3; !kink {
				expect.True(t, math.Abs(want-float64(weights[0])) < 1e-5*(1+math.Abs(want)), "%s at %g, %g, %g: weight %g, want %g", name, l, q, a, weights[0], want)
			}
		}
	}
	good := Datum{[]int32{1, 2}, map[string]Tensor{"target_tokens": {Data: []float64{4, 5}, Shape: []int{2}}}}
	with := func(name string, values ...float64) Datum {
		return Datum{good.Tokens, map[string]Tensor{"target_tokens": good.Inputs["target_tokens"], name: {Data: values, Shape: []int{len(values)}}}}
	}
	expect.Failure(NewLoss("gspo", nil, good))(t, "gspo", "cross_entropy")
	expect.Failure(NewLoss("ppo", nil, good))(t, "logprobs and advantages")
	expect.Failure(NewLoss("ppo", map[string]float64{"x": 1}, good))(t, `"x"`)
	expect.Failure(NewLoss("cross_entropy", nil, with("weights", 1)))(t, "weights has shape [1]")
	expect.Failure(NewLoss("cross_entropy", nil, with("weights", 1, math.Inf(1))))(t, "index 1")
	expect.Failure(NewLoss("cross_entropy", nil, with("advantages", 1, 1)))(t, "advantages")
}

// TestOwnBounds clips each token by its own bounds.
func TestOwnBounds(t *testing.T) {
	two := func(a, b float64) Tensor { return Tensor{Data: []float64{a, b}, Shape: []int{2}} }
	d := Datum{[]int32{1, 2}, map[string]Tensor{"target_tokens": two(3, 4), "advantages": two(1, 1), "logprobs": two(-1, -1), clipHigh: two(1.1, 5)}}
	_, weights := must.Get(NewLoss("cispo", map[string]float64{clipHigh: 9}, d))(t).At([]int{0, 1}, []float32{0, 0})
	expect.Equal(t, []float32{1.1, float32(math.E)}, weights)
}

func FuzzExamples(f *testing.F) {
	f.Add([]byte(`{"forward_input":{"data":[{"loss_fn_inputs":{"target_tokens":{"data":[1],"shape":[1,2],"sparse_crow_indices":[0,1],"sparse_col_indices":[0]}}}]}}`))
	f.Add([]byte(strings.Repeat("\x1a\x08\x0a\x06\x0a\x04\x0a\x02\x0a\x00", 2)))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = new(ForwardResult).UnmarshalProto(data), new(SampleResult).UnmarshalProto(data)
		var e Examples
		if json.Unmarshal(data, &e) != nil && e.UnmarshalProto(data) != nil {
			return
		}
		for _, d := range e.Data {
			if ids, _, err := d.Targets(); err == nil {
				if x, err := NewLoss(e.Loss, e.Config, d); err == nil {
					var read []int
					for i := range ids {
						if x.Reads(i) {
							read = append(read, i)
						}
					}
					x.At(read, make([]float32, len(read)))
				}
			}
		}
	})
}
