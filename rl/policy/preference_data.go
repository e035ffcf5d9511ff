package policy

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"sync"

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
	Untold    int      // rows with tools that the template does not describe
	First     string   // file and line of the first dropped or equal unit
	Places    []string // file and line of each unit
}

// add numbers a unit of an example.
func (f *Preferences) add(e chat.Example, unit []*rl.Sample) {
	f.Places = append(f.Places, fmt.Sprintf("%s:%d", e.File, e.Line))
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
	tools := sync.OnceValue(p.ReadsTools)
	out.Null, err = encodeAll(&out.Bad, examples, func(e chat.Example) (sequences []Sequence, err error) {
		for _, answer := range answersOf(e) {
			e.Format, e.Completion = chat.PromptCompletion, answer
			q, failed := p.encodeExample(e, o)
			sequences, err = append(sequences, q), cmp.Or(err, failed)
		}
		alignLabels(sequences)
		return sequences, err
	}, func(e chat.Example, sequences []Sequence) {
		out.encoded(e, sequences, o.MaxLength, singles)
		if e.Tools != nil && !tools() {
			out.Untold++
		}
	})
	return out, cmp.Or(err, out.empty(fmt.Sprintf("have no token of a response within %d tokens", o.MaxLength)))
}

// alignLabels begins the labels of all responses to a prompt at the same token, as in TRL: a token that joins the end of the
// prompt with the beginning of one response is compared with the same place of the other.
func alignLabels(sequences []Sequence) {
	begin := -1
	for _, q := range sequences {
		if at := slices.Index(q.Labels, true); at >= 0 && (begin < 0 || at < begin) {
			begin = at
		}
	}
	for _, q := range sequences {
		for i := max(begin, 0); begin >= 0 && i < len(q.Labels); i++ {
			q.Labels[i] = true
		}
	}
}

// empty is the error of data without a unit to train on, where rows were dropped for the reason why.
func (f *Preferences) empty(why string) error {
	left := f.Dropped + f.Equal
	if len(f.Units) > 0 || left == 0 {
		return nil
	}
	return fmt.Errorf("none of %d rows can be trained on, the first is %s: %d %s (raise max_length), %d have the same response twice", left, f.First, f.Dropped, why, f.Equal)
}

// encoded adds the units of an example, cut at the limit.
func (f *Preferences) encoded(e chat.Example, sequences []Sequence, limit int, singles bool) {
	same := func() bool { return len(sequences) == 2 && slices.Equal(sequences[0].IDs, sequences[1].IDs) }
	if same() && len(sequences[0].IDs) <= limit {
		f.Equal++
		f.skip(e)
		return
	}
	if slices.ContainsFunc(sequences, func(q Sequence) bool { return q.shortened }) {
		f.Shortened++
	}
	cut, empty := false, false
	for k, q := range sequences {
		if len(q.IDs) > limit {
			sequences[k].IDs, sequences[k].Labels = q.IDs[:limit], q.Labels[:limit]
			cut = true
		}
		empty = empty || sequences[k].labels() == 0
	}
	if empty || cut && same() {
		f.Dropped++
		f.skip(e)
		return
	}
	if cut {
		f.Cut++
	}
	unit := Samples(sequences)
	unit[0].Truth = 1
	if e.Format == chat.Unpaired && !e.Label {
		unit[0].Truth = 0
	}
	if !singles {
		f.add(e, unit)
		return
	}
	for _, x := range unit {
		f.add(e, []*rl.Sample{x})
	}
}

// answersOf are the responses of an example, the better one first.
func answersOf(e chat.Example) []chat.Content {
	if e.Format == chat.Unpaired {
		return []chat.Content{e.Completion}
	}
	return []chat.Content{e.Chosen, e.Rejected}
}
