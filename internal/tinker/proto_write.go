package tinker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Protobuf is the content type of protocol buffers.
const Protobuf = "application/x-protobuf"

// targets are the input of all losses that has whole numbers.
const targets = "target_tokens"

// Proto is a ForwardBackwardRequest.
func (e *Examples) Proto() (message []byte) {
	message = appendBytes(message, 1, []byte(e.ModelID))
	if e.Seq != nil {
		message = appendNumber(message, 2, uint64(*e.Seq))
	}
	for _, d := range e.Data {
		message = appendBytes(message, 3, d.proto())
	}
	message = appendBytes(message, 4, []byte(e.Loss))
	for _, name := range slices.Sorted(maps.Keys(e.Config)) {
		message = appendBytes(message, 5, appendMetric(name, e.Config[name]))
	}
	return appendNumber(message, 6, protowire.EncodeBool(e.ForwardOnly))
}

func (d Datum) proto() (message []byte) {
	tokens := appendBytes(nil, 1, appendInts(nil, d.Tokens))
	message = appendBytes(message, 1, appendBytes(nil, 1, tokens))
	for _, name := range slices.Sorted(maps.Keys(d.Inputs)) {
		t := d.Inputs[name]
		var data, shape []byte
		kind := uint64(typeFloat32)
		for _, x := range t.Data {
			if name == targets {
				kind, data = typeInt64, binary.LittleEndian.AppendUint64(data, uint64(int64(x)))
			} else {
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(x)))
			}
		}
		for _, n := range t.Shape {
			shape = protowire.AppendVarint(shape, uint64(n))
		}
		tensor := appendBytes(appendNumber(appendBytes(nil, 1, data), 3, kind), 4, shape)
		message = appendBytes(message, 2, appendBytes(appendBytes(nil, 1, []byte(name)), 2, tensor))
	}
	return message
}

// UnmarshalProto reads LogProbs and Metrics from a ForwardBackwardOutput.
func (r *ForwardResult) UnmarshalProto(message []byte) error {
	*r = ForwardResult{Metrics: map[string]float64{}}
	return eachField(message, func(number protowire.Number, f field) error {
		switch number {
		case 2:
			return eachField(f.bytes, func(number protowire.Number, f field) error {
				if number != 2 {
					return nil
				}
				name, value, err := f.entry()
				if err == nil && name == "logprobs" {
					err = r.add(value.bytes)
				}
				return err
			})
		case 3:
			name, value, err := f.entry()
			r.Metrics[name] = math.Float64frombits(value.number)
			return err
		}
		return nil
	})
}

// add reads the log-probabilities of a record.
func (r *ForwardResult) add(tensor []byte) error {
	var values []byte
	var offsets []int64
	if err := eachField(tensor, func(number protowire.Number, f field) (err error) {
		switch number {
		case 1:
			values = f.bytes
		case 2:
			offsets, err = numbers(f.bytes, 8, int64Of)
		case 3:
			if f.number != typeFloat32 {
				err = errors.New("logprobs are not float32")
			}
		}
		return err
	}); err != nil {
		return err
	}
	for i := range max(0, len(offsets)-1) {
		from, to := offsets[i], offsets[i+1]
		if from < 0 || to < from || to > int64(len(values)) {
			return fmt.Errorf("logprobs of example %d are bytes %d to %d of %d", i, from, to, len(values))
		}
		l, err := numbers(values[from:to], 4, float32Of)
		if err != nil {
			return err
		}
		r.LogProbs = append(r.LogProbs, l)
	}
	return nil
}

// UnmarshalProto reads the sequences of a SampleResponse.
func (r *SampleResult) UnmarshalProto(message []byte) error {
	*r = SampleResult{}
	return eachField(message, func(number protowire.Number, f field) error {
		if number != 1 {
			return nil
		}
		s := Sequence{Reason: "stop"}
		err := eachField(f.bytes, func(number protowire.Number, f field) (err error) {
			switch {
			case number == 1 && f.number != 0:
				s.Reason = "length"
			case number == 2:
				s.Tokens, err = numbers(f.bytes, 4, int32Of)
			case number == 3:
				s.LogProbs, err = numbers(f.bytes, 4, float32Of)
			}
			return err
		})
		r.Sequences = append(r.Sequences, s)
		return err
	})
}
