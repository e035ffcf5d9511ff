package epochs

import (
	"context"
	"slices"

	"github.com/rltrain/rltrain/rl"
)

// Preferences is a source of pairs, or of single answers, of a data set in epochs. The samples of a unit lie side by
// side and have its number for their Prompt.
type Preferences struct {
	*Source
	mismatch int // tokens that a prompt with another's answer may have; 0 = such are not asked for
}

// NewPreferences makes a source of units, batchSize of them a step. With mismatch above 0 each step has the prompts of
// its samples with each other's answers aside, cut at so many tokens, for loss kto.
func NewPreferences(units [][]*rl.Sample, batchSize, mismatch int, seed uint64) *Preferences {
	return &Preferences{newSource(units, batchSize, seed), mismatch}
}

// Next implements algo.Source.
func (p *Preferences) Next(ctx context.Context, at rl.At) (*rl.Step, error) {
	step, err := p.Source.Next(ctx, at)
	if err != nil || p.mismatch == 0 {
		return step, err
	}
	step.KLSamples = Mismatches(step.Samples, p.mismatch)
	return step, nil
}

// Mismatches are the prompt of each sample with the answer of the one before, as TRL has it, where that has room within
// limit tokens.
func Mismatches(samples []*rl.Sample, limit int) (out []*rl.Sample) {
	for i, x := range samples {
		if y := Mismatched(x, samples[(i+len(samples)-1)%len(samples)], limit); y != nil {
			out = append(out, y)
		}
	}
	return out
}

// Mismatched is the prompt of x with the answer of y, nil where nothing of the answer has room.
func Mismatched(x, y *rl.Sample, limit int) *rl.Sample {
	prompt, answer := x.Tokens[:x.Rows[0]+1], y.Tokens[y.Rows[0]+1:]
	answer = answer[:min(len(answer), max(0, limit-len(prompt)))]
	if len(answer) == 0 {
		return nil
	}
	z := &rl.Sample{Tokens: slices.Concat(prompt, answer), Actions: answer, Prompt: x.Prompt}
	for i := range answer {
		z.Rows = append(z.Rows, len(prompt)-1+i)
	}
	return z
}
