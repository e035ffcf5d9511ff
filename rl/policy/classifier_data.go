package policy

import (
	"fmt"

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

// Samples are the examples for SFT: the label is the action. Their Prompt is their index.
func (e Examples) Samples() []*rl.Sample {
	samples := make([]*rl.Sample, e.Len())
	for i, ids := range e.IDs {
		label := int32(e.Labels[i])
		samples[i] = &rl.Sample{Tokens: ids, Actions: []int32{label}, Truth: label, Prompt: i}
	}
	return samples
}

// Encode turns rows into examples. Errors name the file and line of a text that cannot be encoded, or of a label that the
// policy does not have.
func (p *Classifier) Encode(rows []dataset.Row) (Examples, error) {
	labels, err := dataset.LabelIndex(rows, p.Labels)
	if err != nil {
		return Examples{}, err
	}
	e := Examples{IDs: make([][]int32, len(rows)), Labels: labels}
	cut, errs := make([]bool, len(rows)), make([]error, len(rows))
	onAllProcessors(len(rows), func(i int) { e.IDs[i], cut[i], errs[i] = p.EncodeText(rows[i].Text) })
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
		return p.words.encode(p.lm, text, p.MaxLength)
	}
	return p.Tokenizer.Encode(text, p.MaxLength)
}

// Shown is what the policy reads of a text, and the number of its tokens.
func (p *Classifier) Shown(text string) (string, int, error) {
	ids, _, err := p.EncodeText(text)
	if err != nil {
		return "", 0, err
	}
	shown, err := p.Tokenizer.Decode(ids, false)
	return shown, len(ids), err
}
