package policy

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/rl"
)

// Preferences are the responses of a data set as samples. A unit is a pair with the chosen response first, or one response;
// its samples are neighbours and have its number as their Prompt.
type Preferences struct {
	Units   [][]*rl.Sample
	Cut     int            // units with a response longer than the limit
	Dropped int            // units with a response that cutting removed
	Equal   int            // pairs of equal responses
	Null    int            // rows without a text
	Bad     dataset.Faults // rows that cannot be encoded
	// Shortened counts rows whose prompt lost the thought that the template opens; see TokenExamples.
	Shortened int
	First     string // file and line of the first dropped or equal unit
}

// add numbers a unit.
func (f *Preferences) add(unit []*rl.Sample) {
	for i, x := range unit {
		x.Prompt, x.Index = len(f.Units), i
	}
	f.Units = append(f.Units, unit)
}

// skip notes where a unit was dropped.
func (f *Preferences) skip(e chat.Example) {
	if f.First == "" {
		f.First = fmt.Sprintf("%s:%d", e.File, e.Line)
	}
}

// EncodePreferences turns preferences into samples whose actions are the tokens of the responses, with the token that ends a
// text. With singles each response is a unit, and Truth says whether it is good. Of o only MaxLength and SkipBad count.
// Errors name the file and line of a row that cannot be encoded.
func (p *CausalLM) EncodePreferences(examples iter.Seq2[chat.Example, error], o EncodeOptions, singles bool) (Preferences, error) {
	o.MaxLength, o.CompletionOnly = p.LimitLength(o.MaxLength), true
	var out Preferences
	var err error
	out.Bad.Skip = o.SkipBad
	out.Null, err = inBatches(&out.Bad, examples, func(batch []chat.Example) error { return p.encodePreferences(&out, batch, o, singles) })
	if left := out.Dropped + out.Equal; err == nil && len(out.Units) == 0 && left > 0 {
		err = fmt.Errorf("none of %d rows can be trained on, the first is %s: %d have no token of a response within %d tokens (raise max_length), %d have the same response twice", left, out.First, out.Dropped, o.MaxLength, out.Equal)
	}
	return out, err
}

// encodePreferences adds the units of examples to out, in their order.
func (p *CausalLM) encodePreferences(out *Preferences, batch []chat.Example, o EncodeOptions, singles bool) error {
	encoded, errs := make([][]Sequence, len(batch)), make([]error, len(batch))
	onAllProcessors(len(batch), func(i int) {
		for _, answer := range answersOf(batch[i]) {
			e := batch[i]
			e.Format, e.Completion = chat.PromptCompletion, answer
			q, err := p.encodeExample(e, o)
			encoded[i], errs[i] = append(encoded[i], q), cmp.Or(errs[i], err)
		}
	})
	for i, sequences := range encoded {
		e := batch[i]
		if errs[i] != nil {
			if err := out.Bad.Add(rowError(e, errs[i])); err != nil {
				return err
			}
			continue
		}
		if len(sequences) == 2 && slices.Equal(sequences[0].IDs, sequences[1].IDs) && len(sequences[0].IDs) <= o.MaxLength {
			out.Equal++
			out.skip(e)
			continue
		}
		if slices.ContainsFunc(sequences, func(q Sequence) bool { return q.shortened }) {
			out.Shortened++
		}
		cut, empty := false, false
		for k, q := range sequences {
			if len(q.IDs) > o.MaxLength {
				sequences[k].IDs, sequences[k].Labels = q.IDs[:o.MaxLength], q.Labels[:o.MaxLength]
				cut = true
			}
			empty = empty || sequences[k].labels() == 0
		}
		if empty || cut && len(sequences) == 2 && slices.Equal(sequences[0].IDs, sequences[1].IDs) {
			out.Dropped++
			out.skip(e)
			continue
		}
		if cut {
			out.Cut++
		}
		unit := Samples(sequences)
		unit[0].Truth = 1
		if e.Format == chat.Unpaired && !e.Label {
			unit[0].Truth = 0
		}
		if !singles {
			out.add(unit)
			continue
		}
		for _, x := range unit {
			out.add([]*rl.Sample{x})
		}
	}
	return nil
}

// answersOf are the responses of an example, the better one first.
func answersOf(e chat.Example) []chat.Content {
	if e.Format == chat.Unpaired {
		return []chat.Content{e.Completion}
	}
	return []chat.Content{e.Chosen, e.Rejected}
}
