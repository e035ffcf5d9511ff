package policy

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/rl"
)

// Examples are labelled texts as a policy sees them.
type Examples struct {
	IDs    [][]int32 // token ids of each text
	Labels []int     // index into the policy's labels
	Cut    int       // texts that were longer than the policy's MaxLength
}

// Len is the number of examples.
func (e Examples) Len() int { return len(e.IDs) }

// Samples are the examples as something to imitate: the label is the action. Their Prompt is their index.
func (e Examples) Samples() []*rl.Sample {
	samples := make([]*rl.Sample, e.Len())
	for i, ids := range e.IDs {
		label := int32(e.Labels[i])
		samples[i] = &rl.Sample{Tokens: ids, Actions: []int32{label}, Truth: label, Prompt: i}
	}
	return samples
}

// Encode turns rows into examples. Errors name the file and line of a text that cannot be encoded, or of a
// label that the policy does not have.
func (p *Classifier) Encode(rows []dataset.Row) (Examples, error) {
	labels, err := dataset.LabelIndex(rows, p.Labels)
	if err != nil {
		return Examples{}, err
	}
	e := Examples{IDs: make([][]int32, len(rows)), Labels: labels}
	cut := make([]bool, len(rows))
	errs := make([]error, len(rows))
	var wait sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wait.Go(func() {
			for i := w; i < len(rows); i += workers {
				e.IDs[i], cut[i], errs[i] = p.EncodeText(rows[i].Text)
			}
		})
	}
	wait.Wait()
	for i, err := range errs {
		if err != nil {
			return Examples{}, fmt.Errorf("%s:%d: %w", rows[i].File, rows[i].Line, err)
		}
		if cut[i] {
			e.Cut++
		}
	}
	return e, nil
}

// EncodeText is the token ids of one text, and whether it was cut at MaxLength.
func (p *Classifier) EncodeText(text string) (ids []int32, cut bool, err error) {
	if p.Pooling == PoolScore {
		return p.encodePrompt(text)
	}
	return p.tokenizer.Encode(text, p.MaxLength)
}

// different are the texts, each once, as where several labels are drawn for one, and which of them each text is; nil where
// all are different.
func different(texts [][]int32) (once [][]int32, of []int64) {
	known := map[string]int64{}
	var key []byte
	for _, text := range texts {
		key = key[:0]
		for _, id := range text {
			key = binary.NativeEndian.AppendUint32(key, uint32(id))
		}
		at, seen := known[string(key)]
		if !seen {
			at = int64(len(once))
			known[string(key)] = at
			once = append(once, text)
		}
		of = append(of, at)
	}
	if len(once) == len(texts) {
		return texts, nil
	}
	return once, of
}
